package resourcequota_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// A quota keeps the last count of objects whose server is unavailable, because they may still exist.
func TestResourceQuota_KeepsTheCountOfAnUnavailableServer(t *testing.T) {
	t.Parallel()
	direct := testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0),
		testenv.WithoutScheduler())
	extensions, config := controllertest.StartExtensions(t, direct)
	c := controllertest.ClockedAt(t, direct, "resourcequota")
	c.Config, c.Impersonate = config, true
	c.Restart()
	c.CreateJob("one", nil)
	const jobs = "count/jobs.batch"
	quotas := c.Client.CoreV1().ResourceQuotas("default")
	_, err := quotas.Create(c.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{jobs: resource.MustParse("5")}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	used := func(name corev1.ResourceName, want string) func() bool {
		return func() bool {
			q, err := quotas.Get(c.Context(), "q", metav1.GetOptions{})
			require.NoError(t, err)
			n, ok := q.Status.Used[name]
			return ok && n.String() == want
		}
	}
	c.Reaches("the first object is counted", used(jobs, "1"))

	extensions.Take(batchv1.SchemeGroupVersion)
	c.Restart() // the new controller has no state
	_, err = quotas.Patch(c.Context(), "q", types.MergePatchType, []byte(`{"spec":{"hard":{"count/configmaps":"5"}}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	before := extensions.Stale()
	c.Passing(time.Second, "it has tried, and tried again after it wrote what it found", func() bool {
		return extensions.Stale() > before+1
	})
	require.True(t, used(jobs, "1")())
	c.CreateJob("two", nil)
	extensions.Give(batchv1.SchemeGroupVersion)
	c.Passing(time.Second, "the second object is counted", used(jobs, "2"))
}
