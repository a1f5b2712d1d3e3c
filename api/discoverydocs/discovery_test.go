package discoverydocs_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientdiscovery "k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/discoverydocs"
)

func register[O, L any](r api.Resource) *api.Resource {
	r.New = func() api.Object { return any(new(O)).(api.Object) }
	r.NewList = func() runtime.Object { return any(new(L)).(runtime.Object) }
	return &r
}

func snapshot() *api.Snapshot {
	return api.NewRegistry(
		register[unstructured.Unstructured, unstructured.UnstructuredList](api.Resource{
			Names: api.Names{
				Group: "stable.example.com", Version: "v1", Kind: "CronTab", Plural: "crontabs", Namespaced: true,
			},
		}),
		register[autoscalingv1.HorizontalPodAutoscaler, autoscalingv1.HorizontalPodAutoscalerList](api.Resource{
			Names: api.Names{
				Group: "autoscaling", Version: "v1", Kind: "HorizontalPodAutoscaler", Plural: "horizontalpodautoscalers",
				Namespaced: true,
			},
		}),
		register[autoscalingv2.HorizontalPodAutoscaler, autoscalingv2.HorizontalPodAutoscalerList](api.Resource{
			Names: api.Names{
				Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler", Plural: "horizontalpodautoscalers",
				Namespaced: true,
			},
		}),
		register[appsv1.Deployment, appsv1.DeploymentList](api.Resource{
			Names: api.Names{
				Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments", Namespaced: true,
				ShortNames: []string{"deploy"}, Categories: []string{"all"},
			},
			Strategy: api.Strategy{Status: &api.Status{}, Scale: &api.Scale{}},
		}),
		register[corev1.Pod, corev1.PodList](api.Resource{
			Names: api.Names{
				Version: "v1", Kind: "Pod", Plural: "pods", Namespaced: true,
				ShortNames: []string{"po"}, Categories: []string{"all"},
			},
			Strategy: api.Strategy{
				Status: &api.Status{},
				Subresources: []api.Subresource{
					{Name: "eviction", Group: "policy", Version: "v1", Kind: "Eviction", Verbs: []string{"create"}},
					{Name: "binding", Version: "v1", Kind: "Binding", Verbs: []string{"create"}},
				},
			},
		}),
		register[corev1.Namespace, corev1.NamespaceList](api.Resource{
			Names: api.Names{
				Version: "v1", Kind: "Namespace", Plural: "namespaces", ShortNames: []string{"ns"},
				UnsupportedVerbs: []string{"deletecollection"},
			},
		}),
	).Snapshot()
}

// The entries equal kube-apiserver's.
func TestResources_MatchKubernetes(t *testing.T) {
	t.Parallel()
	all := metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	require.Equal(t, &metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: "apps/v1",
		APIResources: []metav1.APIResource{
			{Name: "deployments", SingularName: "deployment", Namespaced: true, Kind: "Deployment", Verbs: all,
				ShortNames: []string{"deploy"}, Categories: []string{"all"}, StorageVersionHash: "8aSe+NMegvE="},
			{Name: "deployments/scale", Namespaced: true, Group: "autoscaling", Version: "v1", Kind: "Scale",
				Verbs: metav1.Verbs{"get", "patch", "update"}},
			{Name: "deployments/status", Namespaced: true, Kind: "Deployment",
				Verbs: metav1.Verbs{"get", "patch", "update"}},
		},
	}, discoverydocs.Resources(snapshot(), appsv1.SchemeGroupVersion))
}

func TestResources_OfCore(t *testing.T) {
	t.Parallel()
	list := discoverydocs.Resources(snapshot(), corev1.SchemeGroupVersion)
	require.Equal(t, "v1", list.GroupVersion)
	var names []string
	for _, r := range list.APIResources {
		names = append(names, r.Name)
	}
	require.Equal(t, []string{"namespaces", "pods", "pods/binding", "pods/eviction", "pods/status"}, names)
	require.NotContains(t, list.APIResources[0].Verbs, "deletecollection")
	require.Equal(t, "xPOwRZ+Yhw8=", list.APIResources[1].StorageVersionHash)
	require.Empty(t, list.APIResources[2].Group, "a Binding is of the same group")
	require.Equal(t, "policy", list.APIResources[3].Group)
	require.Nil(t, discoverydocs.Resources(snapshot(), schema.GroupVersion{Group: "batch", Version: "v1"}))
}

func TestGroups_FollowKubernetesOrderWithCustomOnesLast(t *testing.T) {
	t.Parallel()
	var names []string
	for _, g := range discoverydocs.Groups(snapshot(), nil).Groups {
		names = append(names, g.Name)
	}
	require.Equal(t, []string{"apps", "autoscaling", "stable.example.com"}, names)
	scaling := discoverydocs.Group(snapshot(), nil, "autoscaling")
	require.Equal(t, "autoscaling/v2", scaling.PreferredVersion.GroupVersion)
	require.Equal(t, []metav1.GroupVersionForDiscovery{
		{GroupVersion: "autoscaling/v2", Version: "v2"}, {GroupVersion: "autoscaling/v1", Version: "v1"},
	}, scaling.Versions)
	require.Nil(t, discoverydocs.Group(snapshot(), nil, ""), "core is at /api")
	require.Equal(t, []string{"v1"}, discoverydocs.Versions(snapshot(), "127.0.0.1:6443").Versions)
}

func TestRegistrations_OrderGroupsAndVersions(t *testing.T) {
	t.Parallel()
	gv := func(group, version string) schema.GroupVersion {
		return schema.GroupVersion{Group: group, Version: version}
	}
	r := &discoverydocs.Registrations{
		External: map[schema.GroupVersion]bool{gv("wardle.example.com", "v1beta1"): true,
			gv("wardle.example.com", "v1alpha1"): true, gv("autoscaling", "v1"): true, gv("a.example.com", "v1"): true},
		Priorities: map[schema.GroupVersion]discoverydocs.Priority{
			gv("wardle.example.com", "v1beta1"):  {Group: 2000, Version: 10},
			gv("wardle.example.com", "v1alpha1"): {Group: 17900, Version: 20},
			gv("a.example.com", "v1"):            {Group: 1000, Version: 1},
			gv("autoscaling", "v1"):              {Group: 1, Version: 40}, gv("none.example.com", "v1"): {Group: 20000, Version: 1}},
	}
	var names []string
	for _, g := range discoverydocs.Groups(snapshot(), r).Groups {
		for _, v := range g.Versions {
			names = append(names, v.GroupVersion)
		}
	}
	require.Equal(t, []string{"wardle.example.com/v1alpha1", "wardle.example.com/v1beta1", "apps/v1", "autoscaling/v1",
		"autoscaling/v2", "a.example.com/v1", "stable.example.com/v1"}, names)
	stale := func(gv schema.GroupVersion) apidiscoveryv2.APIVersionDiscovery {
		return apidiscoveryv2.APIVersionDiscovery{Version: gv.Version,
			Freshness: apidiscoveryv2.DiscoveryFreshnessStale}
	}
	doc := discoverydocs.AggregatedGroups(snapshot(), r, stale)
	require.Equal(t, "wardle.example.com", doc.Items[0].Name)
	require.Equal(t, apidiscoveryv2.DiscoveryFreshnessStale, doc.Items[0].Versions[0].Freshness)
	require.Equal(t, apidiscoveryv2.DiscoveryFreshnessCurrent, doc.Items[1].Versions[0].Freshness)
	require.Equal(t, apidiscoveryv2.DiscoveryFreshnessStale, doc.Items[2].Versions[0].Freshness, "autoscaling/v1")
}

func TestHash_FollowsTheContent(t *testing.T) {
	t.Parallel()
	core, err := discoverydocs.Hash(discoverydocs.AggregatedCore(snapshot()))
	require.NoError(t, err)
	same, err := discoverydocs.Hash(discoverydocs.AggregatedCore(snapshot()))
	require.NoError(t, err)
	groups, err := discoverydocs.Hash(discoverydocs.AggregatedGroups(snapshot(), nil, nil))
	require.NoError(t, err)
	require.Equal(t, core, same)
	require.NotEqual(t, core, groups)
}

// client-go must get the same result from both forms.
func TestClientGo_ReadsTheSameFromBothForms(t *testing.T) {
	t.Parallel()
	names := func(aggregate bool) (out []string) {
		client := clientdiscovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: serve(t, aggregate)})
		groups, lists, err := client.ServerGroupsAndResources()
		require.NoError(t, err)
		for _, g := range groups {
			out = append(out, "group "+g.Name+" prefers "+g.PreferredVersion.GroupVersion)
		}
		for _, list := range lists {
			for _, r := range list.APIResources {
				if strings.Contains(r.Name, "/") {
					r.SingularName = "" // client-go sets it, but only from the aggregated form
				}
				out = append(out, fmt.Sprintln(list.GroupVersion, r.Name, r.SingularName, r.Namespaced, r.Kind, r.Verbs,
					r.ShortNames, r.Categories))
			}
		}
		return out
	}
	legacy := names(false)
	require.Len(t, legacy, 4+11)
	require.ElementsMatch(t, legacy, names(true)) // client-go keeps the aggregated versions in a map
}

// serve starts a server with the documents and returns its URL.
func serve(t *testing.T, aggregate bool) string {
	s := snapshot()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var doc any
		switch path := strings.Split(strings.Trim(r.URL.Path, "/"), "/"); {
		case aggregate && r.URL.Path == "/api":
			doc = discoverydocs.AggregatedCore(s)
		case aggregate && r.URL.Path == "/apis":
			doc = discoverydocs.AggregatedGroups(s, nil, nil)
		case r.URL.Path == "/api":
			doc = discoverydocs.Versions(s, r.Host)
		case r.URL.Path == "/apis":
			doc = discoverydocs.Groups(s, nil)
		case path[0] == "api":
			doc = discoverydocs.Resources(s, schema.GroupVersion{Version: path[1]})
		default:
			doc = discoverydocs.Resources(s, schema.GroupVersion{Group: path[1], Version: path[2]})
		}
		w.Header().Set("Content-Type", "application/json")
		if aggregate {
			w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		}
		_ = json.NewEncoder(w).Encode(doc)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func BenchmarkAggregatedGroups(b *testing.B) {
	s := snapshot()
	for b.Loop() {
		discoverydocs.AggregatedGroups(s, nil, nil)
	}
}

func Example() {
	s := snapshot() // the registry's current set
	for _, group := range discoverydocs.AggregatedGroups(s, nil, nil).Items {
		for _, version := range group.Versions {
			for _, resource := range version.Resources {
				fmt.Println(group.Name, version.Version, resource.Resource, resource.Scope)
			}
		}
	}
	// Output:
	// apps v1 deployments Namespaced
	// autoscaling v2 horizontalpodautoscalers Namespaced
	// autoscaling v1 horizontalpodautoscalers Namespaced
	// stable.example.com v1 crontabs Namespaced
}
