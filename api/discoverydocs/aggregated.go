package discoverydocs

import (
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
)

// AggregatedCore returns the aggregated document at /api: the core group.
func AggregatedCore(s *api.Snapshot) *apidiscoveryv2.APIGroupDiscoveryList {
	return aggregated(s, nil, nil, func(group string) bool { return group == "" })
}

// AggregatedGroups returns the aggregated document at /apis: every group except core. external returns the description
// of a version that another server serves. It is called for each of r's External.
func AggregatedGroups(s *api.Snapshot, r *Registrations,
	external func(schema.GroupVersion) apidiscoveryv2.APIVersionDiscovery) *apidiscoveryv2.APIGroupDiscoveryList {
	return aggregated(s, r, external, func(group string) bool { return group != "" })
}

// Hash returns a hash of a document's content in hexadecimal, for its ETag.
func Hash(doc any) (string, error) {
	data, err := json.Marshal(doc)
	if err != nil {
		return "", fmt.Errorf("discovery: hash: %w", err)
	}
	sum := sha512.Sum512(data)
	return hex.EncodeToString(sum[:]), nil
}

func aggregated(s *api.Snapshot, r *Registrations,
	external func(schema.GroupVersion) apidiscoveryv2.APIVersionDiscovery,
	include func(group string) bool) *apidiscoveryv2.APIGroupDiscoveryList {
	list := &apidiscoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList",
			APIVersion: apidiscoveryv2.SchemeGroupVersion.String()},
		Items: []apidiscoveryv2.APIGroupDiscovery{},
	}
	for _, gv := range groupVersions(s, r) {
		if !include(gv.Group) {
			continue
		}
		if last := len(list.Items) - 1; last < 0 || list.Items[last].Name != gv.Group {
			list.Items = append(list.Items,
				apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: gv.Group}})
		}
		group := &list.Items[len(list.Items)-1]
		if r.Elsewhere(gv) {
			group.Versions = append(group.Versions, external(gv))
		} else {
			group.Versions = append(group.Versions, versionOf(s, gv))
		}
	}
	return list
}

func versionOf(s *api.Snapshot, gv schema.GroupVersion) apidiscoveryv2.APIVersionDiscovery {
	v := apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	for _, r := range resourcesOf(s, gv) {
		entry := apidiscoveryv2.APIResourceDiscovery{
			Resource:         r.Plural,
			ResponseKind:     &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind},
			Scope:            apidiscoveryv2.ScopeCluster,
			SingularResource: r.Singular,
			Verbs:            verbs(r),
			ShortNames:       r.ShortNames,
			Categories:       r.Categories,
		}
		if r.Namespaced {
			entry.Scope = apidiscoveryv2.ScopeNamespace
		}
		for _, sub := range subresources(r) {
			entry.Subresources = append(entry.Subresources, apidiscoveryv2.APISubresourceDiscovery{
				Subresource:  sub.Name,
				ResponseKind: &metav1.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind},
				Verbs:        slices.Sorted(slices.Values(sub.Verbs)),
			})
		}
		v.Resources = append(v.Resources, entry)
	}
	return v
}
