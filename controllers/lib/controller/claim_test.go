package controller_test

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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

var (
	ownerKind  = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}
	podsOf     = schema.GroupResource{Resource: "pods"}
	errRefused = errors.New("refused")
)

// claim describes a Claimer for the test's pods, and records its requests.
type claim struct {
	owner      *metav1.ObjectMeta
	live       *metav1.ObjectMeta // the owner as the API server has it
	liveErr    error
	patchErr   error
	finalizers []string

	reads   int
	patches map[string]map[string]any // metadata of the patches, by the pods' names
}

func newClaim(change func(*claim)) *claim {
	c := &claim{patches: map[string]map[string]any{},
		owner: &metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web-1"},
		live:  &metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web-1"}}
	change(c)
	return c
}

// run returns the names of the claimed pods.
func (c *claim) run(t *testing.T, pods ...*corev1.Pod) (names []string, err error) {
	claimed, err := controller.Claim(t.Context(), controller.Claimer{
		Owner: c.owner, Kind: ownerKind, Selector: labels.SelectorFromSet(labels.Set{"app": "web"}),
		Finalizers: c.finalizers,
		Live: func(context.Context) (metav1.Object, error) {
			c.reads++
			return c.live, c.liveErr
		},
		Patch: func(_ context.Context, obj metav1.Object, patch []byte) error {
			var sent struct{ Metadata map[string]any }
			require.NoError(t, json.Unmarshal(patch, &sent))
			c.patches[obj.GetName()] = sent.Metadata
			return c.patchErr
		},
	}, pods)
	for _, pod := range claimed {
		names = append(names, pod.Name)
	}
	return names, err
}

// podLabelled returns a pod, which is an orphan if no owners are given.
func podLabelled(name, app string, owners ...types.UID) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-1"),
		Labels: map[string]string{"app": app}}}
	for _, uid := range owners {
		pod.OwnerReferences = append(pod.OwnerReferences, metav1.OwnerReference{APIVersion: "apps/v1",
			Kind: ownerKind.Kind, Name: "web", UID: uid, Controller: new(true)})
	}
	return pod
}

func TestClaim_AdoptsAnOrphanByItsUID(t *testing.T) {
	t.Parallel()
	c := newClaim(func(c *claim) { c.finalizers = []string{"example.com/count"} })
	names, err := c.run(t, podLabelled("a", "web"), podLabelled("b", "web"))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, names)
	require.Equal(t, 1, c.reads, "the owner is read once for all")
	require.Equal(t, map[string]any{"uid": "a-1", "finalizers": []any{"example.com/count"},
		"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web",
			"uid": "web-1", "controller": true, "blockOwnerDeletion": true}}}, c.patches["a"])
}

func TestClaim_ReleasesAPodThatNoLongerMatchesByItsUID(t *testing.T) {
	t.Parallel()
	for name, patchErr := range map[string]error{
		"":                       nil,
		"the pod is gone":        apierrors.NewNotFound(podsOf, "a"),
		"another has its name":   apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil),
		"the server has refused": errRefused,
	} {
		c := newClaim(func(c *claim) { c.patchErr = patchErr })
		names, err := c.run(t, podLabelled("a", "other", "web-1"))
		require.Empty(t, names, name)
		require.Equal(t, errors.Is(patchErr, errRefused), err != nil, name)
		require.Equal(t, map[string]any{"uid": "a-1",
			"ownerReferences": []any{map[string]any{"$patch": "delete", "uid": "web-1"}}}, c.patches["a"], name)
		require.Zero(t, c.reads, name)
	}
}

func TestClaim_KeepsMatchingPodsWithoutARequest(t *testing.T) {
	t.Parallel()
	c := newClaim(func(*claim) {})
	names, err := c.run(t, podLabelled("a", "web", "web-1"))
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, names)
	require.Zero(t, c.reads)
	require.Empty(t, c.patches)
}

// TestClaim_IgnoresPods covers pods that are neither adopted nor released, and cause no request.
func TestClaim_IgnoresPods(t *testing.T) {
	t.Parallel()
	deleted := metav1.NewTime(time.Unix(1_800_000_000, 0))
	ownerGoes := func(c *claim) { c.owner.DeletionTimestamp = &deleted }
	going := podLabelled("a", "web")
	going.DeletionTimestamp = &deleted
	for name, tc := range map[string]struct {
		change func(*claim)
		pod    *corev1.Pod
	}{
		"an orphan that does not match":               {func(*claim) {}, podLabelled("a", "other")},
		"an orphan that is being deleted":             {func(*claim) {}, going},
		"an orphan, if the owner is being deleted":    {ownerGoes, podLabelled("a", "web")},
		"a pod of another owner":                      {func(*claim) {}, podLabelled("a", "web", "other-1")},
		"a pod of an earlier owner of the same name":  {func(*claim) {}, podLabelled("a", "web", "web-0")},
		"a pod to release, if its owner is going too": {ownerGoes, podLabelled("a", "other", "web-1")},
	} {
		c := newClaim(tc.change)
		names, err := c.run(t, tc.pod)
		require.NoError(t, err, name)
		require.Empty(t, names, name)
		require.Empty(t, c.patches, name)
		require.Zero(t, c.reads, name)
	}
}

// The cache still shows an owner that no longer exists.
func TestClaim_AdoptsNothingForAStaleOwner(t *testing.T) {
	t.Parallel()
	deleted := metav1.NewTime(time.Unix(1_800_000_000, 0))
	for name, change := range map[string]func(*claim){
		"another has its name": func(c *claim) { c.live.UID = "web-2" },
		"it is being deleted":  func(c *claim) { c.live.DeletionTimestamp = &deleted },
		"it is gone":           func(c *claim) { c.liveErr = apierrors.NewNotFound(podsOf, "web") },
		"it cannot be read":    func(c *claim) { c.liveErr = errRefused },
	} {
		c := newClaim(change)
		names, err := c.run(t, podLabelled("a", "web"), podLabelled("b", "web", "web-1"))
		require.ErrorContains(t, err, "cannot adopt default/a", name)
		require.Equal(t, []string{"b"}, names, "%s: what it has stays its own", name)
		require.Empty(t, c.patches, name)
	}
}

func TestClaim_OmitsPodsThatCouldNotBeAdopted(t *testing.T) {
	t.Parallel()
	for name, patchErr := range map[string]error{
		"gone":    apierrors.NewNotFound(podsOf, "a"),
		"refused": errRefused,
		"another": apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil),
	} {
		c := newClaim(func(c *claim) { c.patchErr = patchErr })
		names, err := c.run(t, podLabelled("a", "web"))
		require.Empty(t, names, name)
		require.Equal(t, name != "gone", err != nil, name)
		require.Contains(t, c.patches, "a", name)
	}
}
