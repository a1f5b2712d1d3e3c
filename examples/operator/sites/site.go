// Package sites is an operator: it keeps a web server running for each Site.
//
// site.go has the kind. reconciler.go has the method that brings the cluster from any state to the one that a Site
// specifies. children.go has the objects that a Site owns. directory.go has the list of domains: several Sites share
// it, so that a finalizer is needed to clean it up. webhooks.go has the admission webhooks for Sites, and install.go
// registers them with the API server.
package sites

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's kinds, which manifests/sites.example.com.yaml defines.
var GroupVersion = schema.GroupVersion{Group: "example.com", Version: "v1"}

// Site is a web site: its pages, and the servers that serve them at a domain.
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              SiteSpec   `json:"spec"`
	Status            SiteStatus `json:"status,omitzero"`
}

// Hub implements conversion.Hub: other versions are converted to this one and from it.
func (*Site) Hub() {}

// SiteSpec is the desired state of a site.
type SiteSpec struct {
	Domain   string            `json:"domain,omitempty"` // the operator sets a default
	Pages    map[string]string `json:"pages"`
	Replicas *int32            `json:"replicas,omitempty"` // the definition's default is 1
	Image    string            `json:"image,omitempty"`    // the definition sets a default
}

// SiteStatus is the observed state of a site.
type SiteStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Replicas           int32              `json:"replicas"`
	ReadyReplicas      int32              `json:"readyReplicas"`
	Selector           string             `json:"selector,omitempty"` // for the scale subresource
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// Ready is the condition that all servers of a site are ready. Its reasons follow.
const (
	Ready = "Ready"

	ReasonServing     = "Serving"
	ReasonStarting    = "Starting"
	ReasonDomainTaken = "DomainTaken"
)

// SiteList is a list of Sites.
type SiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Site `json:"items"`
}

// AddToScheme adds the kinds to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Site{}, &SiteList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// DeepCopy returns a deep copy of the site.
func (s *Site) DeepCopy() *Site {
	c := *s
	s.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Spec.Pages = maps.Clone(s.Spec.Pages)
	if s.Spec.Replicas != nil {
		c.Spec.Replicas = new(*s.Spec.Replicas)
	}
	c.Status = *s.Status.DeepCopy()
	return &c
}

// DeepCopy returns a deep copy of the status.
func (s *SiteStatus) DeepCopy() *SiteStatus {
	c := *s
	c.Conditions = nil
	for _, condition := range s.Conditions {
		c.Conditions = append(c.Conditions, *condition.DeepCopy())
	}
	return &c
}

// DeepCopyObject implements runtime.Object.
func (s *Site) DeepCopyObject() runtime.Object { return s.DeepCopy() }

// DeepCopyObject implements runtime.Object.
func (l *SiteList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]Site, 0, len(l.Items))
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopy())
	}
	return &c
}
