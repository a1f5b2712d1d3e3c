// Package v1alpha1 is the first version of Sites, for older clients: pages are a list, and servers have a field of
// their own. Sites are stored in the version of package sites. The operator converts them.
package v1alpha1

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/conversion"

	"github.com/coxswain-dev/coxswain/examples/operator/sites"
)

// GroupVersion is the group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: sites.GroupVersion.Group, Version: "v1alpha1"}

// Site is a web site.
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              SiteSpec         `json:"spec"`
	Status            sites.SiteStatus `json:"status,omitzero"`
}

// SiteSpec is the desired state of a site.
type SiteSpec struct {
	Host    string  `json:"host,omitempty"`
	Pages   []Page  `json:"pages"`
	Servers Servers `json:"servers,omitzero"`
}

// Page is one page. Its name is unique in a site.
type Page struct {
	Name    string `json:"name"`
	Content string `json:"content"`
}

// Servers are the site's web servers.
type Servers struct {
	Count *int32 `json:"count,omitempty"`
	Image string `json:"image,omitempty"`
}

// ConvertTo implements conversion.Convertible.
func (s *Site) ConvertTo(hub conversion.Hub) error {
	site := hub.(*sites.Site)
	site.ObjectMeta, site.Status = s.ObjectMeta, s.Status
	site.Spec = sites.SiteSpec{Domain: s.Spec.Host, Replicas: s.Spec.Servers.Count, Image: s.Spec.Servers.Image,
		Pages: make(map[string]string, len(s.Spec.Pages))}
	for _, page := range s.Spec.Pages {
		if _, exists := site.Spec.Pages[page.Name]; exists {
			return fmt.Errorf("spec.pages: there are two of the name %q", page.Name)
		}
		site.Spec.Pages[page.Name] = page.Content
	}
	return nil
}

// ConvertFrom implements conversion.Convertible.
func (s *Site) ConvertFrom(hub conversion.Hub) error {
	from := hub.(*sites.Site)
	s.ObjectMeta, s.Status = from.ObjectMeta, from.Status
	s.Spec = SiteSpec{Host: from.Spec.Domain, Servers: Servers{Count: from.Spec.Replicas, Image: from.Spec.Image},
		Pages: []Page{}}
	for _, name := range slices.Sorted(maps.Keys(from.Spec.Pages)) {
		s.Spec.Pages = append(s.Spec.Pages, Page{Name: name, Content: from.Spec.Pages[name]})
	}
	return nil
}

// AddToScheme adds the kind to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Site{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// DeepCopyObject implements runtime.Object.
func (s *Site) DeepCopyObject() runtime.Object {
	c := *s
	s.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Spec.Pages = slices.Clone(s.Spec.Pages)
	if s.Spec.Servers.Count != nil {
		c.Spec.Servers.Count = new(*s.Spec.Servers.Count)
	}
	c.Status = *s.Status.DeepCopy()
	return &c
}
