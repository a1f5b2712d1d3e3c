package endpointslices

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

var owner = Owner{Namespace: "default", Name: "web", MaxEndpoints: 3, Labels: map[string]string{"app": "web"},
	Reference: metav1.OwnerReference{Kind: "Service", Name: "web", UID: "web-1", Controller: new(true)}}

var http = []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(80))}}

// desired returns endpoints with one set of ports, by the last numbers of their addresses.
func desired(ports []discoveryv1.EndpointPort, numbers ...int) Desired {
	g := PortGroups{}
	for _, n := range numbers {
		g.Add(ports, endpoint(n))
	}
	return Desired{discoveryv1.AddressTypeIPv4: g}
}

func endpoint(n int) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", n)}}
}

func slice(name string, ports []discoveryv1.EndpointPort, numbers ...int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		UID: types.UID(name + "-1"), Labels: map[string]string{"app": "web"},
		OwnerReferences: []metav1.OwnerReference{owner.Reference}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: ports}
	for _, n := range numbers {
		s.Endpoints = append(s.Endpoints, endpoint(n))
	}
	return s
}

// describe returns the names and addresses of slices.
func describe(all []*discoveryv1.EndpointSlice) (lines []string) {
	for _, s := range all {
		line := s.Name + ":"
		for _, e := range s.Endpoints {
			line += " " + e.Addresses[0][len("10.0.0."):]
		}
		lines = append(lines, line)
	}
	return lines
}

func TestReconcile_WritesFewSlices(t *testing.T) {
	t.Parallel()
	have := func(all ...*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { return all }
	other := []discoveryv1.EndpointPort{{Name: new("other"), Port: new(int32(81))}}
	for name, c := range map[string]struct {
		existing                          []*discoveryv1.EndpointSlice
		desired                           Desired
		create, update, remove, unchanged []string
	}{
		"the first":           {nil, desired(http, 1, 2), []string{": 1 2"}, nil, nil, nil},
		"more than one holds": {nil, desired(http, 1, 2, 3, 4), []string{": 1 2 3", ": 4"}, nil, nil, nil},
		"nothing changes":     {have(slice("a", http, 1, 2)), desired(http, 1, 2), nil, nil, nil, []string{"a: 1 2"}},
		"one more fits":       {have(slice("a", http, 1, 2)), desired(http, 1, 2, 3), nil, []string{"a: 1 2 3"}, nil, nil},
		"one more fits in the fullest": {have(slice("a", http, 1), slice("b", http, 2, 3)),
			desired(http, 1, 2, 3, 4), nil, []string{"b: 2 3 4"}, nil, []string{"a: 1"}},
		"one goes, and its slice is filled": {have(slice("a", http, 1, 2, 3), slice("b", http, 4)),
			desired(http, 2, 3, 4, 5), nil, []string{"a: 2 3 5"}, nil, []string{"b: 4"}},
		"none fits": {have(slice("a", http, 1, 2, 3)), desired(http, 1, 2, 3, 4),
			[]string{": 4"}, nil, nil, []string{"a: 1 2 3"}},
		"a slice becomes empty": {have(slice("a", http, 1), slice("b", http, 2)), desired(http, 2),
			nil, nil, []string{"a: 1"}, []string{"b: 2"}},
		"all others":           {have(slice("a", http, 1)), desired(http, 2), nil, []string{"a: 2"}, nil, nil},
		"other ports":          {have(slice("a", http, 1)), desired(other, 1), nil, []string{"a: 1"}, nil, nil},
		"nothing is desired":   {have(slice("a", http, 1)), desired(http), nil, nil, []string{"a: 1"}, nil},
		"an address type goes": {have(slice("a", http, 1)), Desired{}, nil, nil, []string{"a: 1"}, nil},
	} {
		changes := Reconcile(owner, c.existing, c.desired)
		require.Equal(t, c.create, describe(changes.Create), "%s: create", name)
		require.Equal(t, c.update, describe(changes.Update), "%s: update", name)
		require.Equal(t, c.remove, describe(changes.Delete), "%s: delete", name)
		require.Equal(t, c.unchanged, describe(changes.Unchanged), "%s: unchanged", name)
	}
}

func TestReconcile_DeletesSlicesOfAnEarlierOwnerOfTheName(t *testing.T) {
	t.Parallel()
	theirs := slice("a", http, 1)
	theirs.OwnerReferences[0].UID = "web-0"
	changes := Reconcile(owner, []*discoveryv1.EndpointSlice{theirs}, desired(http, 1))
	require.Equal(t, []string{"a: 1"}, describe(changes.Delete))
	require.Equal(t, []string{": 1"}, describe(changes.Create))
	require.Equal(t, types.UID("web-1"), changes.Create[0].OwnerReferences[0].UID)
}

func TestReconcile_KeepsAPlaceholderForNoEndpoints(t *testing.T) {
	t.Parallel()
	holding := owner
	holding.Placeholder = true
	changes := Reconcile(holding, nil, desired(http))
	require.Equal(t, []string{":"}, describe(changes.Create))
	empty := slice("a", []discoveryv1.EndpointPort{})
	changes = Reconcile(holding, []*discoveryv1.EndpointSlice{empty}, desired(http))
	require.Empty(t, describe(changes.Create))
	require.Empty(t, describe(changes.Update))
	require.Empty(t, describe(changes.Delete))
	changes = Reconcile(holding, []*discoveryv1.EndpointSlice{slice("a", http, 1)}, desired(http))
	require.Equal(t, []string{"a:"}, describe(changes.Update))
}

func TestReconcile_SetsLabelsAndAnnotations(t *testing.T) {
	t.Parallel()
	labelled := owner
	labelled.Labels, labelled.Annotations = map[string]string{"app": "new"}, map[string]string{"of": "the owner"}
	since := map[string]string{corev1.EndpointsLastChangeTriggerTime: "then", "of": "an earlier owner"}
	s := slice("a", http, 1)
	s.Annotations = since
	changes := Reconcile(labelled, []*discoveryv1.EndpointSlice{s}, desired(http, 1))
	require.Equal(t, []string{"a: 1"}, describe(changes.Update))
	require.Equal(t, labelled.Labels, changes.Update[0].Labels)
	require.Equal(t, map[string]string{corev1.EndpointsLastChangeTriggerTime: "then", "of": "the owner"},
		changes.Update[0].Annotations)
	require.Equal(t, map[string]string{"app": "web"}, s.Labels, "the cache's copy stays as it is")
}

func TestRecompute_ComparesHintsWithTheExistingSlices(t *testing.T) {
	t.Parallel()
	hinted := owner
	hinted.KeepHints = true
	hint := &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}
	a, b := slice("a", http, 1, 2, 3), slice("b", http, 4)
	a.Endpoints[0].Hints = hint
	changes := Reconcile(hinted, []*discoveryv1.EndpointSlice{a, b}, desired(http, 1, 2, 3, 4))
	require.Equal(t, []string{"a: 1 2 3", "b: 4"}, describe(changes.Unchanged))
	require.Equal(t, hint, changes.Unchanged[0].Endpoints[0].Hints)
	changes.Unchanged[1].Endpoints[0].Hints = hint
	changes.Recompute()
	require.Equal(t, []string{"a: 1 2 3"}, describe(changes.Unchanged))
	require.Equal(t, []string{"b: 4"}, describe(changes.Update))
}

func TestFinalize_WritesTheChanges(t *testing.T) {
	t.Parallel()
	existing := []*discoveryv1.EndpointSlice{slice("a", http, 1, 2, 3), slice("b", http, 4), slice("c", http, 5)}
	client := fake.NewClientset(existing[0], existing[1], existing[2])
	changes := Reconcile(owner, existing, desired(http, 1, 2, 4, 6, 7, 8))
	triggerTime, stored := time.Unix(1_800_000_000, 0), 0
	err := changes.Finalize(t.Context(), client, triggerTime, func(*discoveryv1.EndpointSlice) { stored++ })
	require.NoError(t, err)
	list, err := client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var all []*discoveryv1.EndpointSlice
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	require.Equal(t, []string{"a: 1 2 6", "b: 4 7 8"}, describe(all))
	require.Equal(t, "2027-01-15T08:00:00Z", all[0].Annotations[corev1.EndpointsLastChangeTriggerTime])
	require.Equal(t, 2, stored)
	for _, action := range client.Actions() {
		if d, ok := action.(clienttesting.DeleteActionImpl); ok {
			require.Equal(t, types.UID("c-1"), *d.DeleteOptions.Preconditions.UID)
		}
	}
}

func TestDelete_ContinuesAfterAFailureAndReportsIt(t *testing.T) {
	t.Parallel()
	existing := []*discoveryv1.EndpointSlice{slice("a", http, 1), slice("b", http, 2), slice("c", http, 3)}
	client := fake.NewClientset(existing[0], existing[1], existing[2])
	refused := errors.New("refused")
	client.PrependReactor("delete", "endpointslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.(clienttesting.DeleteAction).GetName() == "a", nil, refused
	})
	deleted, err := Delete(t.Context(), client, existing)
	require.ErrorIs(t, err, refused)
	require.Equal(t, len(existing)-1, deleted)
	list, err := client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	_, err = Delete(t.Context(), client, existing[1:])
	require.NoError(t, err, "those that are gone are no failure")
}
