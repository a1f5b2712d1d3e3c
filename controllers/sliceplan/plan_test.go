package sliceplan

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

var owner = Owner{Namespace: "default", Name: "web", Max: 3, Labels: map[string]string{"app": "web"},
	Reference: metav1.OwnerReference{Kind: "Service", Name: "web", UID: "web-1", Controller: new(true)}}

var http = []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(80))}}

// layout has endpoints of one set of ports, by the last numbers of their addresses.
func layout(ports []discoveryv1.EndpointPort, numbers ...int) Layout {
	g := Groups{}
	for _, n := range numbers {
		g.Add(ports, endpoint(n))
	}
	return Layout{discoveryv1.AddressTypeIPv4: g}
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

// describe is the names and addresses of slices.
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

func TestPlan_WritesAsFewSlicesAsItCan(t *testing.T) {
	t.Parallel()
	have := func(all ...*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { return all }
	other := []discoveryv1.EndpointPort{{Name: new("other"), Port: new(int32(81))}}
	for name, c := range map[string]struct {
		existing                          []*discoveryv1.EndpointSlice
		wanted                            Layout
		create, update, remove, unchanged []string
	}{
		"the first":           {nil, layout(http, 1, 2), []string{": 1 2"}, nil, nil, nil},
		"more than one holds": {nil, layout(http, 1, 2, 3, 4), []string{": 1 2 3", ": 4"}, nil, nil, nil},
		"nothing changes":     {have(slice("a", http, 1, 2)), layout(http, 1, 2), nil, nil, nil, []string{"a: 1 2"}},
		"one more fits":       {have(slice("a", http, 1, 2)), layout(http, 1, 2, 3), nil, []string{"a: 1 2 3"}, nil, nil},
		"one more fits in the fullest": {have(slice("a", http, 1), slice("b", http, 2, 3)),
			layout(http, 1, 2, 3, 4), nil, []string{"b: 2 3 4"}, nil, []string{"a: 1"}},
		"one goes, and its slice is filled": {have(slice("a", http, 1, 2, 3), slice("b", http, 4)),
			layout(http, 2, 3, 4, 5), nil, []string{"a: 2 3 5"}, nil, []string{"b: 4"}},
		"none fits": {have(slice("a", http, 1, 2, 3)), layout(http, 1, 2, 3, 4),
			[]string{": 4"}, nil, nil, []string{"a: 1 2 3"}},
		"a slice becomes empty": {have(slice("a", http, 1), slice("b", http, 2)), layout(http, 2),
			nil, nil, []string{"a: 1"}, []string{"b: 2"}},
		"all others":           {have(slice("a", http, 1)), layout(http, 2), nil, []string{"a: 2"}, nil, nil},
		"other ports":          {have(slice("a", http, 1)), layout(other, 1), nil, []string{"a: 1"}, nil, nil},
		"nothing is wanted":    {have(slice("a", http, 1)), layout(http), nil, nil, []string{"a: 1"}, nil},
		"an address type goes": {have(slice("a", http, 1)), Layout{}, nil, nil, []string{"a: 1"}, nil},
	} {
		p := New(owner, c.existing, c.wanted)
		require.Equal(t, c.create, describe(p.Create), "%s: create", name)
		require.Equal(t, c.update, describe(p.Update), "%s: update", name)
		require.Equal(t, c.remove, describe(p.Delete), "%s: delete", name)
		require.Equal(t, c.unchanged, describe(p.Unchanged), "%s: unchanged", name)
	}
}

func TestPlan_DeletesSlicesOfAnEarlierOwnerOfTheName(t *testing.T) {
	t.Parallel()
	theirs := slice("a", http, 1)
	theirs.OwnerReferences[0].UID = "web-0"
	p := New(owner, []*discoveryv1.EndpointSlice{theirs}, layout(http, 1))
	require.Equal(t, []string{"a: 1"}, describe(p.Delete))
	require.Equal(t, []string{": 1"}, describe(p.Create))
	require.Equal(t, types.UID("web-1"), p.Create[0].OwnerReferences[0].UID)
}

func TestPlan_KeepsAnEmptySliceWhereThereIsNothing(t *testing.T) {
	t.Parallel()
	holding := owner
	holding.Placeholder = true
	p := New(holding, nil, layout(http))
	require.Equal(t, []string{":"}, describe(p.Create))
	empty := slice("a", []discoveryv1.EndpointPort{})
	p = New(holding, []*discoveryv1.EndpointSlice{empty}, layout(http))
	require.Empty(t, describe(p.Create))
	require.Empty(t, describe(p.Update))
	require.Empty(t, describe(p.Delete))
	p = New(holding, []*discoveryv1.EndpointSlice{slice("a", http, 1)}, layout(http))
	require.Equal(t, []string{"a:"}, describe(p.Update))
}

func TestPlan_DressesSlices(t *testing.T) {
	t.Parallel()
	dressed := owner
	dressed.Labels, dressed.Annotations = map[string]string{"app": "new"}, map[string]string{"of": "the owner"}
	since := map[string]string{corev1.EndpointsLastChangeTriggerTime: "then", "of": "an earlier owner"}
	s := slice("a", http, 1)
	s.Annotations = since
	p := New(dressed, []*discoveryv1.EndpointSlice{s}, layout(http, 1))
	require.Equal(t, []string{"a: 1"}, describe(p.Update))
	require.Equal(t, dressed.Labels, p.Update[0].Labels)
	require.Equal(t, map[string]string{corev1.EndpointsLastChangeTriggerTime: "then", "of": "the owner"},
		p.Update[0].Annotations)
	require.Equal(t, map[string]string{"app": "web"}, s.Labels, "the cache's copy stays as it is")
}

func TestPlan_SettlesByWhatIsWritten(t *testing.T) {
	t.Parallel()
	hinted := owner
	hinted.KeepHints = true
	hint := &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}
	a, b := slice("a", http, 1, 2, 3), slice("b", http, 4)
	a.Endpoints[0].Hints = hint
	p := New(hinted, []*discoveryv1.EndpointSlice{a, b}, layout(http, 1, 2, 3, 4))
	require.Equal(t, []string{"a: 1 2 3", "b: 4"}, describe(p.Unchanged))
	require.Equal(t, hint, p.Unchanged[0].Endpoints[0].Hints)
	p.Unchanged[1].Endpoints[0].Hints = hint
	p.Settle()
	require.Equal(t, []string{"a: 1 2 3"}, describe(p.Unchanged))
	require.Equal(t, []string{"b: 4"}, describe(p.Update))
}

func TestWrite_CarriesOutThePlan(t *testing.T) {
	t.Parallel()
	existing := []*discoveryv1.EndpointSlice{slice("a", http, 1, 2, 3), slice("b", http, 4), slice("c", http, 5)}
	client := fake.NewClientset(existing[0], existing[1], existing[2])
	p := New(owner, existing, layout(http, 1, 2, 4, 6, 7, 8))
	since, noted := time.Unix(1_800_000_000, 0), 0
	require.NoError(t, p.Write(t.Context(), client, since, func(*discoveryv1.EndpointSlice) { noted++ }))
	list, err := client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var all []*discoveryv1.EndpointSlice
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	require.Equal(t, []string{"a: 1 2 6", "b: 4 7 8"}, describe(all))
	require.Equal(t, "2027-01-15T08:00:00Z", all[0].Annotations[corev1.EndpointsLastChangeTriggerTime])
	require.Equal(t, 2, noted)
	for _, action := range client.Actions() {
		if d, ok := action.(clienttesting.DeleteActionImpl); ok {
			require.Equal(t, types.UID("c-1"), *d.DeleteOptions.Preconditions.UID)
		}
	}
}

func TestWrite_GoesOnAfterAFailureAndReportsIt(t *testing.T) {
	t.Parallel()
	existing := []*discoveryv1.EndpointSlice{slice("a", http, 1), slice("b", http, 2), slice("c", http, 3)}
	client := fake.NewClientset(existing[0], existing[1], existing[2])
	refused := errors.New("refused")
	client.PrependReactor("delete", "endpointslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.(clienttesting.DeleteAction).GetName() == "a", nil, refused
	})
	require.ErrorIs(t, Delete(t.Context(), client, existing), refused)
	list, err := client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	require.NoError(t, Delete(t.Context(), client, existing[1:]), "those that are gone are no failure")
}
