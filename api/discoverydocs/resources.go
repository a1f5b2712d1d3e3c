package discoverydocs

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
)

// Resources returns the document at /api/<version> or /apis/<group>/<version>, or nil if the group and version has no
// resource.
func Resources(s *api.Snapshot, gv schema.GroupVersion) *metav1.APIResourceList {
	resources := resourcesOf(s, gv)
	if len(resources) == 0 {
		return nil
	}
	list := &metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: gv.String(),
	}
	if gv.Group == "" {
		list.APIVersion = "" // as in Kubernetes
	}
	for _, r := range resources {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: r.Plural, SingularName: r.Singular, Namespaced: r.Namespaced, Kind: r.Kind,
			Verbs: verbs(r), ShortNames: r.ShortNames, Categories: r.Categories,
			StorageVersionHash: storageVersionHash(r),
		})
		for _, sub := range subresources(r) {
			entry := metav1.APIResource{
				Name: r.Plural + "/" + sub.Name, Namespaced: r.Namespaced, Kind: sub.Kind,
				Verbs: slices.Sorted(slices.Values(sub.Verbs)),
			}
			if sub.Group != gv.Group || sub.Version != gv.Version {
				entry.Group, entry.Version = sub.Group, sub.Version
			}
			list.APIResources = append(list.APIResources, entry)
		}
	}
	return list
}

// subresources returns a resource's subresources in kube-apiserver's order: for a custom resource, /status comes
// first.
func subresources(r *api.Resource) []api.Subresource {
	all := r.AllSubresources()
	if r.Schema != 0 {
		slices.Reverse(all)
	}
	return all
}

// resourcesOf returns the resources of a group and version, sorted by name.
func resourcesOf(s *api.Snapshot, gv schema.GroupVersion) []*api.Resource {
	var resources []*api.Resource
	for _, r := range s.Resources {
		if r.GroupVersion() == gv {
			resources = append(resources, r)
		}
	}
	slices.SortFunc(resources, func(a, b *api.Resource) int { return strings.Compare(a.Plural, b.Plural) })
	return resources
}

// verbs returns the verbs that a resource serves, in alphabetical order.
func verbs(r *api.Resource) []string {
	all := []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	return slices.DeleteFunc(all, func(verb string) bool { return slices.Contains(r.UnsupportedVerbs, verb) })
}

// storageVersionHash returns a hash that changes with the storage version of a kind. It equals Kubernetes' hash for
// the same kind.
func storageVersionHash(r *api.Resource) string {
	if r.CreateOnly || r.Virtual {
		return ""
	}
	r = r.Stored()
	sum := sha256.Sum256([]byte(r.Group + "/" + r.Version + "/" + r.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}
