package discovery

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/coxswain-dev/coxswain/api"
)

// groupOrder is the order in which Kubernetes lists its groups. kubectl resolves a resource name that
// several groups have to the group listed first. Groups that are not listed follow by name.
var groupOrder = []string{
	"", "apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io",
	"autoscaling", "batch", "certificates.k8s.io", "networking.k8s.io", "policy",
	"rbac.authorization.k8s.io", "storage.k8s.io", "admissionregistration.k8s.io",
	"apiextensions.k8s.io", "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io",
	"discovery.k8s.io", "resource.k8s.io", "flowcontrol.apiserver.k8s.io",
}

// Versions is the document at /api. address is the host:port at which clients reach the server.
func Versions(s *api.Snapshot, address string) *metav1.APIVersions {
	doc := &metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{Kind: "APIVersions"},
		Versions: []string{},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0",
			ServerAddress: address}},
	}
	for _, gv := range groupVersions(s) {
		if gv.Group == "" {
			doc.Versions = append(doc.Versions, gv.Version)
		}
	}
	return doc
}

// Groups is the document at /apis: every group but core.
func Groups(s *api.Snapshot) *metav1.APIGroupList {
	list := &metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
		Groups:   []metav1.APIGroup{},
	}
	for _, gv := range groupVersions(s) {
		if gv.Group == "" {
			continue
		}
		v := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		if last := len(list.Groups) - 1; last >= 0 && list.Groups[last].Name == gv.Group {
			list.Groups[last].Versions = append(list.Groups[last].Versions, v)
			continue
		}
		list.Groups = append(list.Groups, metav1.APIGroup{
			Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v,
		})
	}
	return list
}

// Group is the document at /apis/<group>, or nil if nothing of the group is registered.
func Group(s *api.Snapshot, group string) *metav1.APIGroup {
	for _, g := range Groups(s).Groups {
		if g.Name == group {
			g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			return &g
		}
	}
	return nil
}

// groupVersions are the groups and versions of a snapshot in the order of preference: within a group,
// stable before beta before alpha, and newer before older.
func groupVersions(s *api.Snapshot) []schema.GroupVersion {
	var gvs []schema.GroupVersion
	for _, r := range s.Resources {
		if gv := r.GroupVersion(); !slices.Contains(gvs, gv) {
			gvs = append(gvs, gv)
		}
	}
	slices.SortFunc(gvs, func(a, b schema.GroupVersion) int {
		return cmp.Or(
			cmp.Compare(groupRank(a.Group), groupRank(b.Group)),
			cmp.Compare(a.Group, b.Group),
			version.CompareKubeAwareVersionStrings(b.Version, a.Version),
		)
	})
	return gvs
}

func groupRank(group string) int {
	if i := slices.Index(groupOrder, group); i >= 0 {
		return i
	}
	return len(groupOrder)
}
