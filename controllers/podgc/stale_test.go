package podgc

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
)

// stale is a collector with an empty cache of Nodes; the API server may have some.
type stale struct {
	*podGC
	server *fake.Clientset
	clock  *clocktesting.FakeClock
}

func newStale(objects ...runtime.Object) *stale {
	s := &stale{server: fake.NewClientset(objects...), clock: clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))}
	s.podGC = &podGC{client: func() kubernetes.Interface { return s.server }, clock: s.clock,
		missing: map[string]time.Time{},
		nodes:   corelisters.NewNodeLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}))}
	return s
}

func (s *stale) refuse(verb, resource string, err error) {
	s.server.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, err
	})
}

func TestIsGone_ReadsTheNodeFromTheServerAfterTheQuarantine(t *testing.T) {
	t.Parallel()
	there := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "there"}}
	for _, c := range []struct {
		node   string
		passes time.Duration
		want   bool
		reads  int
	}{
		{"gone", 0, false, 0},
		{"gone", quarantine - 1, false, 0},
		{"gone", quarantine, true, 1},
		{"there", quarantine, false, 1},
		{"there", time.Hour, false, 1},
	} {
		s := newStale(there)
		missing, err := s.isGone(t.Context(), c.node)
		require.NoError(t, err)
		require.False(t, missing)
		s.clock.Step(c.passes)
		missing, err = s.isGone(t.Context(), c.node)
		require.NoError(t, err)
		require.Equal(t, c.want, missing, "%+v", c)
		require.Len(t, s.server.Actions(), c.reads, "%+v", c)
	}
}

func TestIsGone_ReturnsAnErrorIfTheNodeCannotBeRead(t *testing.T) {
	t.Parallel()
	s := newStale()
	refused := errors.New("refused")
	s.refuse("get", "nodes", refused)
	s.missing["n"] = s.clock.Now().Add(-quarantine)
	missing, err := s.isGone(t.Context(), "n")
	require.ErrorIs(t, err, refused)
	require.False(t, missing)
	orphans, err := s.orphans(t.Context(), []*corev1.Pod{{Spec: corev1.PodSpec{NodeName: "n"}}})
	require.ErrorIs(t, err, refused)
	require.Empty(t, orphans)
}

// TestIsGone_RestartsTheQuarantineOfANodeThatCameBack lets a Node be missing twice, for less than the quarantine
// each time.
func TestIsGone_RestartsTheQuarantineOfANodeThatCameBack(t *testing.T) {
	t.Parallel()
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	s := newStale()
	s.nodes = corelisters.NewNodeLister(nodes)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	isGone := func() bool {
		missing, err := s.isGone(t.Context(), "n")
		require.NoError(t, err)
		return missing
	}
	require.False(t, isGone())
	s.clock.Step(quarantine - 1)
	require.NoError(t, nodes.Add(node))
	require.False(t, isGone())
	require.NoError(t, nodes.Delete(node))
	s.clock.Step(1)
	require.False(t, isGone())
	s.clock.Step(quarantine)
	require.True(t, isGone())
}

// TestEnd_WritesOnlyToThePodWithItsUID checks the preconditions of each write: they make the API server reject it if
// another pod has taken the name.
func TestEnd_WritesOnlyToThePodWithItsUID(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p-1", ResourceVersion: "7"}}
	for name, write := range map[string]func(*podGC, context.Context) error{
		"an orphan":           func(g *podGC, ctx context.Context) error { return g.endOrphan(ctx, pod) },
		"a pod that is stuck": func(g *podGC, ctx context.Context) error { return g.end(ctx, pod, nil) },
	} {
		s := newStale(pod)
		require.NoError(t, write(s.podGC, t.Context()), name)
		require.Len(t, s.server.Actions(), 2, name)
		patch := s.server.Actions()[0].(clienttesting.PatchAction)
		require.Equal(t, "status", patch.GetSubresource())
		var sent struct{ Metadata metav1.ObjectMeta }
		require.NoError(t, json.Unmarshal(patch.GetPatch(), &sent))
		require.Equal(t, types.UID("p-1"), sent.Metadata.UID, name)
		require.Equal(t, "7", sent.Metadata.ResourceVersion, name)
		requireNamed(t, s.server.Actions()[1], "p-1")
	}
	s := newStale(pod)
	require.NoError(t, s.delete(t.Context(), pod), "a pod above the threshold")
	requireNamed(t, s.server.Actions()[0], "p-1")
}

func requireNamed(t *testing.T, action clienttesting.Action, uid types.UID) {
	t.Helper()
	o := action.(clienttesting.DeleteActionImpl).DeleteOptions
	require.NotNil(t, o.Preconditions)
	require.Equal(t, &uid, o.Preconditions.UID)
	require.Equal(t, new(int64), o.GracePeriodSeconds)
}

func TestEnd_DoesNotDeleteAPodThatDiffersFromTheCache(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p-1"}}
	pods := schema.GroupResource{Resource: "pods"}
	for name, c := range map[string]struct {
		refusal error
		retried bool
	}{
		"gone":    {apierrors.NewNotFound(pods, "p"), false},
		"changed": {apierrors.NewConflict(pods, "p", errors.New("another version")), true},
	} {
		s := newStale(pod)
		s.refuse("patch", "pods", c.refusal)
		err := s.endOrphan(t.Context(), pod)
		require.Equal(t, c.retried, err != nil, name)
		require.Len(t, s.server.Actions(), 1, "%s: it is not deleted", name)
	}
	s := newStale(pod)
	s.refuse("delete", "pods", apierrors.NewConflict(pods, "p", errors.New("another uid")))
	require.NoError(t, s.delete(t.Context(), pod), "the pod with this uid is already deleted")
}
