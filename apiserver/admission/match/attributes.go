package match

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// Operation is the kind of a write.
type Operation string

// The operations, as admission.k8s.io spells them.
const (
	Create Operation = "CREATE"
	Update Operation = "UPDATE"
	Delete Operation = "DELETE"
	// Connect is a request that is forwarded to a pod, a service or a node.
	Connect Operation = "CONNECT"
)

// Attributes describe one write before it is stored.
type Attributes struct {
	Operation   Operation
	Resource    schema.GroupVersionResource
	Kind        schema.GroupVersionKind
	Subresource string
	Namespace   string
	// Name is "" for a create if the server generates the name.
	Name string
	// Object is the object to write; nil for a delete. Mutators may change it. For subresources with a kind of
	// their own (Binding, Eviction, TokenRequest, Scale) it has that kind.
	Object api.Object
	// Old is the object that is replaced or deleted; nil for a create. It must not be changed.
	Old    api.Object
	User   *authn.User
	DryRun bool
	// Options returns the verb's options as a document; nil if there are none. Connect has its options as Document.
	Options func() map[string]any
	// Document contains the options of a Connect, which has no object; nil otherwise. Mutators may replace it.
	Document map[string]any
	// Own updates metadata.managedFields before a webhook sees the object; nil if field ownership is not tracked.
	Own func() error
	// Collection reports whether the deletion of the object is part of a deletecollection.
	Collection bool
	// Warn adds a Warning header to the response. Audit annotates the request's audit event or, if it is not
	// audited, adds a line to the server's log. Neither is nil.
	Warn  func(text string)
	Audit func(key, value string)
	// Audited reports whether the request is audited, and AuditBodies whether its body is recorded as well.
	Audited, AuditBodies bool
	// Called receives the duration of each webhook call; nil if it is not needed. It is called concurrently.
	Called func(of calls.Type, took time.Duration)

	// Reinvocation is the state of the object's mutation. Only the chain and its plugins change it.
	Reinvocation Reinvocation
}

// Rewritten reports whether a policy or a webhook has changed the object. Either may change any part.
func (a *Attributes) Rewritten() bool { return a.Reinvocation.Rewritten }

// GroupResource returns the resource without its version.
func (a *Attributes) GroupResource() schema.GroupResource { return a.Resource.GroupResource() }

// Within returns the namespace that policies and webhooks see: a Namespace is in itself.
func (a *Attributes) Within() string {
	if a.Namespace == "" && a.GroupResource() == Namespaces {
		return a.Name
	}
	return a.Namespace
}

// Forbid returns the error for a write that a plugin rejects: 403, with the object's name, or its generateName if
// it has no name yet.
func (a *Attributes) Forbid(why error) error {
	name := a.Name
	if name == "" && a.Object != nil {
		if name = a.Object.GetName(); name == "" {
			name = a.Object.GetGenerateName()
		}
	}
	if name == "" {
		name = "Unknown"
	}
	return apierrors.NewForbidden(a.GroupResource(), name, why)
}

// Namespaces is the resource of Namespaces, which are cluster-scoped and each in itself.
var Namespaces = schema.GroupResource{Resource: "namespaces"}
