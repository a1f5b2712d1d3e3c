package apiserver_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
)

func revisionOf(t *testing.T, obj *unstructured.Unstructured) int64 {
	t.Helper()
	revision, err := strconv.ParseInt(obj.GetResourceVersion(), 10, 64)
	require.NoError(t, err)
	return revision
}

// deletedByMark reads the last events of a pod: it is marked for deletion and then deleted.
func deletedByMark(t *testing.T, w *watchStream, name string) (marked, deleted *unstructured.Unstructured) {
	t.Helper()
	marked, deleted = w.expect("MODIFIED", name).Object, w.expect("DELETED", name).Object
	for _, obj := range []*unstructured.Unstructured{marked, deleted} {
		require.NotNil(t, obj.GetDeletionTimestamp(), name)
		require.EqualValues(t, 0, *obj.GetDeletionGracePeriodSeconds(), name)
	}
	require.Greater(t, revisionOf(t, deleted), revisionOf(t, marked), name)
	require.Equal(t, deleted.GetGeneration(), marked.GetGeneration(), name)
	return marked, deleted
}

func isPodRemoval(writes []storage.Write) bool {
	return writes[0].Op == storage.Delete && writes[0].Key.Collection == "core/pods"
}

// assemblePods starts an API server in which pods need no service account, on a backend that can be made to fail.
func assemblePods(t *testing.T) *assembly {
	t.Helper()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	a.create("/api/v1/namespaces/default/serviceaccounts", m{"metadata": m{"name": "default"}})
	return a
}

func TestDelete_PodIsSeenAsBeingDeletedBeforeItIsGone(t *testing.T) {
	t.Parallel()
	s := start(t)
	running := func(name string) { scheduled(s, name) }
	pending := func(name string) { s.create(pods, pod(name)) }
	ended := func(name string) {
		scheduled(s, name)
		s.patch(pods+"/"+name+"/status", mergePatch, `{"status":{"phase":"Failed"}}`).ok(http.StatusOK)
	}
	deletion := func(options any) func(string) *answer {
		return func(name string) *answer { return s.delete(pods+"/"+name, options) }
	}
	for name, c := range map[string]struct {
		make   func(string)
		delete func(string) *answer
	}{
		"pending":  {pending, deletion(nil)},
		"pinned":   {pending, deletion(m{"gracePeriodSeconds": 30})},
		"ended":    {ended, deletion(nil)},
		"at-once":  {running, deletion(m{"gracePeriodSeconds": 0})},
		"orphaned": {pending, deletion(m{"propagationPolicy": "Background"})},
		"expected": {pending, func(name string) *answer {
			version := s.get(pods + "/" + name).object().GetResourceVersion()
			return s.delete(pods+"/"+name, m{"preconditions": m{"resourceVersion": version}})
		}},
	} {
		c.make(name)
		before := s.get(pods + "/" + name).object()
		w := s.watch(pods + "?watch=1&fieldSelector=metadata.name%3D" + name + "&resourceVersion=" +
			before.GetResourceVersion())
		answered := c.delete(name).ok(http.StatusOK).object()
		marked, deleted := deletedByMark(t, w, name)
		require.Equal(t, before.GetGeneration()+1, marked.GetGeneration(), name)
		require.Equal(t, deleted.Object, answered.Object, "the answer is the pod as it was last")
		s.gone(pods + "/" + name)
	}
}

func TestDelete_GracePeriodThatIsCutShortIsSeen(t *testing.T) {
	t.Parallel()
	s := start(t)
	scheduled(s, "a")
	marked := s.delete(pods+"/a", nil).ok(http.StatusOK).object()
	w := s.watch(pods + "?watch=1&resourceVersion=" + marked.GetResourceVersion())
	s.delete(pods+"/a", m{"gracePeriodSeconds": 0}).ok(http.StatusOK)
	_, deleted := deletedByMark(t, w, "a")
	require.Equal(t, marked.GetGeneration(), deleted.GetGeneration(), "counted by the first delete")
	require.True(t, deleted.GetDeletionTimestamp().Before(marked.GetDeletionTimestamp()))
}

func TestDelete_CollectionsAndEvictionsMarkPodsFirst(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(pods, pod("listed"))
	w := s.watch(pods + "?watch=1&resourceVersion=" + s.get(pods).object().GetResourceVersion())
	listed := s.delete(pods, nil).ok(http.StatusOK)
	require.Nil(t, listed.object().Object["items"].([]any)[0].(m)["metadata"].(m)["deletionTimestamp"])
	deletedByMark(t, w, "listed")

	s.create(pods, pod("evicted"))
	w.expect("ADDED", "evicted")
	s.do(http.MethodPost, pods+"/evicted/eviction", m{"metadata": m{"name": "evicted"}}).ok(http.StatusCreated)
	require.Nil(t, w.expect("MODIFIED", "evicted").Object.GetDeletionTimestamp(), "the condition of the eviction")
	deletedByMark(t, w, "evicted")
}

func TestDelete_DryRunOfAPodShowsTheMark(t *testing.T) {
	t.Parallel()
	s := start(t)
	before := s.create(pods, pod("a")).object()
	shown := s.delete(pods+"/a", m{"dryRun": []string{"All"}}).ok(http.StatusOK).object()
	require.NotNil(t, shown.GetDeletionTimestamp())
	require.EqualValues(t, 0, *shown.GetDeletionGracePeriodSeconds())
	require.Equal(t, before.Object, s.get(pods+"/a").object().Object)
}

func TestDelete_FinalizersKeepAPodThatHasNoGracePeriod(t *testing.T) {
	t.Parallel()
	s := start(t)
	before := s.create(pods, with(pod("a"), "finalizers", []string{"example.com/hold"})).object()
	w := s.watch(pods + "?watch=1&resourceVersion=" + before.GetResourceVersion())
	marked := s.delete(pods+"/a", nil).ok(http.StatusOK).object()
	require.Equal(t, marked.Object, w.expect("MODIFIED", "a").Object.Object)
	require.Equal(t, marked.Object, s.delete(pods+"/a", m{"gracePeriodSeconds": 0}).ok(http.StatusOK).object().Object)
	s.patch(pods+"/a", mergePatch, `{"metadata":{"finalizers":null}}`).ok(http.StatusOK)
	deleted := w.expect("DELETED", "a").Object
	require.Equal(t, marked.GetDeletionTimestamp(), deleted.GetDeletionTimestamp())
	require.Equal(t, marked.GetGeneration(), deleted.GetGeneration())
}

// A pod whose deletion was interrupted between its two steps is removed by the next delete or update.
func TestDelete_PodThatIsLeftMarkedCanBeRemoved(t *testing.T) {
	t.Parallel()
	a := assemblePods(t)
	for name, remove := range map[string]func(path string){
		"delete":    func(path string) { a.delete(path, nil).ok(http.StatusOK) },
		"condition": func(path string) { a.patch(path+"/status", mergePatch, `{"status":{"reason":"x"}}`).ok(http.StatusOK) },
		"label":     func(path string) { a.patch(path, mergePatch, `{"metadata":{"labels":{"a":"b"}}}`).ok(http.StatusOK) },
	} {
		path := pods + "/" + name
		a.create(pods, pod(name))
		a.backend.set(func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
			if isPodRemoval(writes) {
				return nil, errors.New("the disk is on fire")
			}
			return a.backend.Backend.Commit(ctx, writes)
		}, nil)
		require.GreaterOrEqual(t, a.delete(path, nil).code, http.StatusInternalServerError)
		a.backend.set(nil, nil)
		left := a.get(path).ok(http.StatusOK).object()
		require.NotNil(t, left.GetDeletionTimestamp())
		w := a.watch(pods + "?watch=1&resourceVersion=" + left.GetResourceVersion())
		remove(path)
		w.expect("DELETED", name)
		a.gone(path)
	}
}

// Another client removes the pod between the two steps. The delete succeeds, since the pod is gone.
func TestDelete_PodRemovedByAnotherClientSucceeds(t *testing.T) {
	t.Parallel()
	a := assemblePods(t)
	a.create(pods, pod("a"))
	var quicker atomic.Bool
	a.backend.set(func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
		if isPodRemoval(writes) && quicker.CompareAndSwap(false, true) {
			first := writes[0]
			first.Expect = storage.AnyRevision
			if _, err := a.backend.Backend.Commit(ctx, []storage.Write{first}); err != nil {
				return nil, err
			}
		}
		return a.backend.Backend.Commit(ctx, writes)
	}, nil)
	deleted := a.delete(pods+"/a", nil).ok(http.StatusOK).object()
	require.True(t, quicker.Load())
	require.NotNil(t, deleted.GetDeletionTimestamp())
	a.gone(pods + "/a")
}

func TestDelete_OtherKindsAreDeletedInOneStep(t *testing.T) {
	t.Parallel()
	s := start(t)
	before := s.create(configMaps, configMap("a")).object()
	w := s.watch(configMaps + "?watch=1&resourceVersion=" + before.GetResourceVersion())
	s.delete(configMaps+"/a", nil).ok(http.StatusOK)
	deleted := w.expect("DELETED", "a").Object
	require.Nil(t, deleted.GetDeletionTimestamp())
}

func TestDelete_AnswersWithTheObjectOfSomeKinds(t *testing.T) {
	t.Parallel()
	s := start(t)
	const services = "/api/v1/namespaces/default/services"
	made := s.create(services, m{"metadata": m{"name": "a"}, "spec": m{"ports": []m{{"port": 80}}}}).object()
	answered := s.delete(services+"/a", nil).ok(http.StatusOK).object()
	require.Equal(t, "Service", answered.GetKind())
	require.Equal(t, made.GetUID(), answered.GetUID())
	require.Nil(t, answered.GetDeletionTimestamp())

	var kinds []string
	for _, res := range builtin.Kinds() {
		if res.ReturnDeleted {
			kinds = append(kinds, res.Kind)
		}
	}
	require.ElementsMatch(t, []string{"PersistentVolume", "PersistentVolumeClaim", "Pod", "PodTemplate",
		"ResourceQuota", "Service", "ServiceAccount", "CSIDriver", "CSINode", "StorageClass", "VolumeAttachment",
		"VolumeAttributesClass", "DeviceClass", "DeviceTaintRule", "ResourceClaim", "ResourceClaimTemplate",
		"ResourceSlice"}, kinds)
	s.create(configMaps, configMap("a"))
	require.Equal(t, metav1.StatusSuccess, s.delete(configMaps+"/a", nil).ok(http.StatusOK).at("status"))
}
