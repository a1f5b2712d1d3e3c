package controllers_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func (c *cluster) deleteNamespace(name string) {
	require.NoError(c, c.client.CoreV1().Namespaces().Delete(c.ctx, name, metav1.DeleteOptions{}))
}

func (c *cluster) awaitNamespaceGone(name string) {
	c.Helper()
	c.eventually("namespace "+name+" is gone", func() bool {
		_, err := c.client.CoreV1().Namespaces().Get(c.ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func TestNamespace_GoesWithAllItsContent(t *testing.T) {
	t.Parallel()
	c := newCluster(t, always)
	c.createNamespace("full")
	for i := range 50 {
		c.object("full", fmt.Sprintf("cm-%d", i))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i)}, Spec: onePod}
		_, err := c.client.CoreV1().Pods("full").Create(c.ctx, pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	c.object("default", "bystander")
	c.deleteNamespace("full")
	c.awaitNamespaceGone("full")

	made, ended := 0, 0
	var lastPod, firstMap uint64
	for _, e := range c.podChanges(c.from) {
		switch pod := e.Object.(*corev1.Pod); {
		case pod.Namespace != "full":
		case e.Type == watch.Added:
			made++
		case e.Type == watch.Deleted:
			ended++
			lastPod = versionOf(t, pod.ResourceVersion)
		}
	}
	for _, e := range c.mapChanges(c.from) {
		if cm := e.Object.(*corev1.ConfigMap); cm.Namespace == "full" && e.Type == watch.Deleted && firstMap == 0 {
			firstMap = versionOf(t, cm.ResourceVersion)
		}
	}
	require.Equal(t, 50, made)
	require.Equal(t, 50, ended)
	require.Less(t, lastPod, firstMap, "pods end before what they may use")
	require.NotNil(t, c.get("default", "bystander"))
}

func TestNamespace_TellsWhatHoldsIt(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.createNamespace("held")
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "stuck", Finalizers: []string{"example.com/hold"}}}
	_, err := c.client.CoreV1().ConfigMaps("held").Create(c.ctx, cm, metav1.CreateOptions{})
	require.NoError(t, err)
	c.deleteNamespace("held")
	var messages map[corev1.NamespaceConditionType]string
	defer func() {
		if t.Failed() {
			t.Logf("conditions: %v", messages)
		}
	}()
	want := map[corev1.NamespaceConditionType]string{
		corev1.NamespaceDeletionDiscoveryFailure: "False: All resources successfully discovered",
		corev1.NamespaceDeletionGVParsingFailure: "False: All legacy kube types successfully parsed",
		corev1.NamespaceDeletionContentFailure:   "False: All content successfully deleted, may be waiting on finalization",
		corev1.NamespaceContentRemaining:         "True: Some resources are remaining: configmaps. has 1 resource instances",
		corev1.NamespaceFinalizersRemaining:      "True: Some finalizers are remaining: example.com/hold in 1 resource instances",
	}
	// At first there may be more: what other controllers were about to put into it.
	c.eventually("conditions", func() bool {
		ns, err := c.client.CoreV1().Namespaces().Get(c.ctx, "held", metav1.GetOptions{})
		require.NoError(t, err)
		messages = map[corev1.NamespaceConditionType]string{}
		for _, condition := range ns.Status.Conditions {
			messages[condition.Type] = string(condition.Status) + ": " + condition.Message
		}
		return maps.Equal(messages, want)
	})

	cm = c.get("held", "stuck")
	cm.Finalizers = nil
	_, err = c.client.CoreV1().ConfigMaps("held").Update(c.ctx, cm, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.awaitNamespaceGone("held")
}

func TestNamespace_TriesAgainWhatCouldNotBeDeleted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.createNamespace("flaky")
	c.object("flaky", "cm")
	c.refuseNext(5, "DELETE", "configmaps")
	c.deleteNamespace("flaky")
	c.awaitNamespaceGone("flaky")
}
