package controllertest

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
)

// Version returns the present resourceVersion.
func (c *Cluster) Version() string {
	list, err := c.Client.CoreV1().Pods("").List(c.Context(), metav1.ListOptions{Limit: 1})
	require.NoError(c, err)
	return list.ResourceVersion
}

// PodChanges returns all stored states of pods since a version.
func (c *Cluster) PodChanges(from string) (changes []watch.Event) {
	pods := c.Client.CoreV1().Pods("default")
	name := "mark-" + string(uuid.NewUUID())
	w, err := c.Client.CoreV1().Pods("").Watch(c.Context(), metav1.ListOptions{ResourceVersion: from})
	require.NoError(c, err)
	defer w.Stop()
	_, err = pods.Create(c.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: OnePod()},
		metav1.CreateOptions{})
	require.NoError(c, err)
	defer func() { require.NoError(c, pods.Delete(c.Context(), name, *metav1.NewDeleteOptions(0))) }()
	return until(c, w, name)
}

// MapChanges returns all stored states of ConfigMaps since a version.
func (c *Cluster) MapChanges(from string) (changes []watch.Event) {
	w, err := c.Client.CoreV1().ConfigMaps("").Watch(c.Context(), metav1.ListOptions{ResourceVersion: from})
	require.NoError(c, err)
	defer w.Stop()
	mark := c.CreateMap("default", "mark-"+string(uuid.NewUUID()))
	defer func() { c.DeleteMap(mark.Name, metav1.DeletePropagationBackground) }()
	return until(c, w, mark.Name)
}

// until reads a watch up to the creation of the mark. It leaves out earlier marks.
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

// CountPods returns how many pods were created, or deleted, since the controllers started.
func (c *Cluster) CountPods(event watch.EventType) (n int) {
	for _, e := range c.PodChanges(c.Began) {
		if e.Type == event {
			n++
		}
	}
	return n
}

// VersionNumber parses a resourceVersion. The larger of two was stored later.
func VersionNumber(t testing.TB, version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	require.NoError(t, err)
	return n
}
