package nodettl_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestNodeTTL_DependsOnTheSizeOfTheCluster(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClockedWith(t, controllers.Settings{}, "ttl")
	names := make([]string, 101)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i)
		c.CreateNode(names[i], nil)
	}
	all := func(want string) func() bool {
		return func() bool {
			list, err := c.Client.CoreV1().Nodes().List(c.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			return !slices.ContainsFunc(list.Items, func(n corev1.Node) bool {
				return n.Annotations["node.alpha.kubernetes.io/ttl"] != want
			})
		}
	}
	c.Reaches("more than a hundred", all("15"))
	for _, name := range names[89:] {
		require.NoError(t, c.Client.CoreV1().Nodes().Delete(c.Context(), name, metav1.DeleteOptions{}))
	}
	c.Reaches("fewer than ninety", all("0"))
}
