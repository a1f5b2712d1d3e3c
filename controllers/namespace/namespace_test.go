package namespace_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestNamespace_IsDeletedWithAllItsContent(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, controllertest.Always)
	c.CreateNamespace("full")
	for i := range 50 {
		c.CreateMap("full", fmt.Sprintf("cm-%d", i))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i)}, Spec: controllertest.OnePod()}
		_, err := c.Client.CoreV1().Pods("full").Create(c.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	c.CreateMap("default", "bystander")
	c.DeleteNamespace("full")
	c.AwaitNamespaceGone("full")

	made, ended := 0, 0
	var lastPod, firstMap uint64
	for _, e := range c.PodChanges(c.Began) {
		switch pod := e.Object.(*corev1.Pod); {
		case pod.Namespace != "full":
		case e.Type == watch.Added:
			made++
		case e.Type == watch.Deleted:
			ended++
			lastPod = controllertest.VersionNumber(t, pod.ResourceVersion)
		}
	}
	for _, e := range c.MapChanges(c.Began) {
		if cm := e.Object.(*corev1.ConfigMap); cm.Namespace == "full" && e.Type == watch.Deleted && firstMap == 0 {
			firstMap = controllertest.VersionNumber(t, cm.ResourceVersion)
		}
	}
	require.Equal(t, 50, made)
	require.Equal(t, 50, ended)
	require.Less(t, lastPod, firstMap, "pods are deleted before objects that they may use")
	require.NotNil(t, c.Map("default", "bystander"))
}

func TestNamespace_ReportsRemainingObjectsAndFinalizers(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil)
	c.CreateNamespace("blocked")
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "stuck", Finalizers: []string{"example.com/hold"}}}
	_, err := c.Client.CoreV1().ConfigMaps("blocked").Create(c.Context(), cm, metav1.CreateOptions{})
	require.NoError(t, err)
	c.DeleteNamespace("blocked")
	var messages map[corev1.NamespaceConditionType]string
	defer func() {
		if t.Failed() {
			t.Logf("conditions: %v", messages)
		}
	}()
	want := map[corev1.NamespaceConditionType]string{
		corev1.NamespaceDeletionDiscoveryFailure: "False: All resources successfully discovered",
		corev1.NamespaceDeletionGVParsingFailure: "False: All legacy kube types successfully parsed",
		corev1.NamespaceDeletionContentFailure: "False: All content successfully deleted, may be waiting on " +
			"finalization",
		corev1.NamespaceContentRemaining: "True: Some resources are remaining: configmaps. has 1 resource " +
			"instances",
		corev1.NamespaceFinalizersRemaining: "True: Some finalizers are remaining: example.com/hold in 1 " +
			"resource instances",
	}
	// At first there may be more objects, which other controllers were creating.
	c.Eventually("conditions", func() bool {
		ns, err := c.Client.CoreV1().Namespaces().Get(c.Context(), "blocked", metav1.GetOptions{})
		require.NoError(t, err)
		messages = map[corev1.NamespaceConditionType]string{}
		for _, condition := range ns.Status.Conditions {
			messages[condition.Type] = string(condition.Status) + ": " + condition.Message
		}
		return maps.Equal(messages, want)
	})

	cm = c.Map("blocked", "stuck")
	cm.Finalizers = nil
	_, err = c.Client.CoreV1().ConfigMaps("blocked").Update(c.Context(), cm, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.AwaitNamespaceGone("blocked")
}

func TestNamespace_RetriesFailedDeletions(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil)
	c.CreateNamespace("flaky")
	c.CreateMap("flaky", "cm")
	c.Faults.RefuseNext(5, "DELETE", "configmaps")
	c.DeleteNamespace("flaky")
	c.AwaitNamespaceGone("flaky")
}

// A group whose server is unavailable may have objects in the namespace. The namespace stays, with a condition, until
// the server is back. Objects of other groups are deleted meanwhile.
func TestNamespace_WaitsForUnavailableGroups(t *testing.T) {
	t.Parallel()
	direct := testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0),
		testenv.WithoutScheduler())
	extensions, config := controllertest.StartExtensions(t, direct)
	group := schema.GroupVersion{Group: "wardle.example.com", Version: "v1alpha1"}
	extensions.Take(group)
	c := controllertest.ClockedAt(t, direct, "namespace")
	c.Config, c.Impersonate = config, true
	c.Restart()
	c.CreateNamespace("waits")
	c.CreateMap("waits", "cm")
	c.DeleteNamespace("waits")
	const want = "True: DiscoveryFailed: Discovery failed for some groups, 1 failing: unable to retrieve the complete " +
		"list of server APIs: wardle.example.com/v1alpha1: stale GroupVersion discovery: wardle.example.com/v1alpha1"
	c.Reaches("the condition reports the group", func() bool {
		ns, err := c.Client.CoreV1().Namespaces().Get(c.Context(), "waits", metav1.GetOptions{})
		require.NoError(t, err)
		return slices.ContainsFunc(ns.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Type == corev1.NamespaceDeletionDiscoveryFailure &&
				fmt.Sprintf("%s: %s: %s", c.Status, c.Reason, c.Message) == want
		})
	})
	require.Nil(t, c.Map("waits", "cm"))
	extensions.Give(group)
	c.Passing(time.Second, "the namespace is deleted", func() bool {
		_, err := c.Client.CoreV1().Namespaces().Get(c.Context(), "waits", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}
