package controllers_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
)

// version is that of all there is now.
func (c *cluster) version() string {
	list, err := c.client.CoreV1().Pods("").List(c.ctx, metav1.ListOptions{Limit: 1})
	require.NoError(c, err)
	return list.ResourceVersion
}

// podChanges are all states of pods after a version, as they were stored.
func (c *cluster) podChanges(from string) (changes []watch.Event) {
	pods := c.client.CoreV1().Pods("default")
	name := "mark-" + string(uuid.NewUUID())
	w, err := c.client.CoreV1().Pods("").Watch(c.ctx, metav1.ListOptions{ResourceVersion: from})
	require.NoError(c, err)
	defer w.Stop()
	_, err = pods.Create(c.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: onePod}, metav1.CreateOptions{})
	require.NoError(c, err)
	defer func() { require.NoError(c, pods.Delete(c.ctx, name, *metav1.NewDeleteOptions(0))) }()
	return until(c, w, name)
}

// mapChanges are those of ConfigMaps.
func (c *cluster) mapChanges(from string) (changes []watch.Event) {
	w, err := c.client.CoreV1().ConfigMaps("").Watch(c.ctx, metav1.ListOptions{ResourceVersion: from})
	require.NoError(c, err)
	defer w.Stop()
	mark := c.object("default", "mark-"+string(uuid.NewUUID()))
	defer func() { c.remove(mark.Name, metav1.DeletePropagationBackground) }()
	return until(c, w, mark.Name)
}

// until reads a watch as far as the creation of the mark. Earlier marks are left out.
func until(t testing.TB, w watch.Interface, mark string) (changes []watch.Event) {
	for e := range w.ResultChan() {
		obj, ok := e.Object.(metav1.Object)
		require.True(t, ok, "%v", e.Object)
		if obj.GetName() == mark {
			return changes
		}
		if len(obj.GetName()) < 5 || obj.GetName()[:5] != "mark-" {
			changes = append(changes, e)
		}
	}
	require.Fail(t, "the watch ended")
	return nil
}

// countPods tells how often pods were made, or ended, since the controllers started.
func (c *cluster) countPods(event watch.EventType) (n int) {
	for _, e := range c.podChanges(c.from) {
		if e.Type == event {
			n++
		}
	}
	return n
}

var onePod = corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}}
