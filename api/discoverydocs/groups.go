package discoverydocs

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// Versions returns the document at /api. address is the server's host:port for clients.
func Versions(s *api.Snapshot, address string) *metav1.APIVersions {
	doc := &metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{Kind: "APIVersions"},
		Versions: []string{},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0",
			ServerAddress: address}},
	}
	for _, gv := range groupVersions(s, nil) {
		if gv.Group == "" {
			doc.Versions = append(doc.Versions, gv.Version)
		}
	}
	return doc
}

// Groups returns the document at /apis: every group except core.
func Groups(s *api.Snapshot, r *Registrations) *metav1.APIGroupList {
	list := &metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
		Groups:   []metav1.APIGroup{},
	}
	for _, gv := range groupVersions(s, r) {
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

// Group returns the document at /apis/<group>, or nil if the group is not served.
func Group(s *api.Snapshot, r *Registrations, group string) *metav1.APIGroup {
	for _, g := range Groups(s, r).Groups {
		if g.Name == group {
			g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			return &g
		}
	}
	return nil
}
