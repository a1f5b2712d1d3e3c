package controllers_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	c.server.graceful = true
	c.createNamespace("full")
	for i := range 50 {
		c.object("full", fmt.Sprintf("cm-%d", i))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i)}}
		_, err := c.client.CoreV1().Pods("full").Create(c.ctx, pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	c.object("default", "bystander")
	c.deleteNamespace("full")
	c.awaitNamespaceGone("full")

	c.server.mu.Lock()
	left := map[string]int{}
	lastPod, firstOther := 0, 0
	for i, change := range c.server.log {
		if change.object.GetNamespace() != "full" || change.kind.plural == "events" {
			continue
		}
		switch {
		case change.event == "ADDED":
			left[change.kind.plural]++
		case change.event == "DELETED":
			left[change.kind.plural]--
			if change.kind.plural == "pods" {
				lastPod = i
			} else if firstOther == 0 {
				firstOther = i
			}
		}
	}
	c.server.mu.Unlock()
	require.Zero(t, left["pods"])
	require.Zero(t, left["configmaps"])
	require.Less(t, lastPod, firstOther, "pods end before what they may use")
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
	messages := map[corev1.NamespaceConditionType]string{}
	c.eventually("conditions", func() bool {
		ns, err := c.client.CoreV1().Namespaces().Get(c.ctx, "held", metav1.GetOptions{})
		require.NoError(t, err)
		for _, condition := range ns.Status.Conditions {
			messages[condition.Type] = string(condition.Status) + ": " + condition.Message
		}
		return len(messages) == 5
	})
	require.Equal(t, map[corev1.NamespaceConditionType]string{
		corev1.NamespaceDeletionDiscoveryFailure: "False: All resources successfully discovered",
		corev1.NamespaceDeletionGVParsingFailure: "False: All legacy kube types successfully parsed",
		corev1.NamespaceDeletionContentFailure:   "False: All content successfully deleted, may be waiting on finalization",
		corev1.NamespaceContentRemaining:         "True: Some resources are remaining: configmaps. has 1 resource instances",
		corev1.NamespaceFinalizersRemaining:      "True: Some finalizers are remaining: example.com/hold in 1 resource instances",
	}, messages)

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
