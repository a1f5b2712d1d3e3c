package match

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// Cluster is the state of the cluster that plugins may read. Objects that it returns are shared and must not be
// changed. All methods are safe for concurrent use.
type Cluster interface {
	// Get reads one object. A missing one is ErrNotFound, and so is one of a resource that is not served. Get looks
	// in memory and, if the object is missing, once more when memory is known to be as new as etcd.
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (api.Object, error)
	// Await is Get, except that it waits a second or two for a missing object to appear; the Cluster chooses how
	// long.
	Await(ctx context.Context, resource schema.GroupResource, namespace, name string) (api.Object, error)
	// List reads the objects of a namespace, or of all with "". With fresh they are as new as etcd; otherwise they
	// are the ones in memory.
	List(ctx context.Context, resource schema.GroupResource, namespace string, fresh bool) ([]api.Object, error)
	// Mentioning reads the objects of all namespaces that contain a text in their documents, from memory.
	Mentioning(ctx context.Context, resource schema.GroupResource, text string) ([]api.Object, error)
	// CreateNamespace creates a namespace. It is not an error if the namespace exists.
	CreateNamespace(ctx context.Context, ns *corev1.Namespace) error
	// Kind returns the resource of a served kind.
	Kind(kind schema.GroupVersionKind) (schema.GroupVersionResource, bool)
	// Changed returns a number that changes with every change of the resource's objects that memory receives; 0 if
	// there are no objects.
	Changed(resource schema.GroupResource) int64
	// Served returns the registration of a kind, nil if there is none. Versions returns the registrations that
	// serve the same objects as a resource, itself included.
	Served(kind schema.GroupVersionKind) *api.Resource
	Versions(resource schema.GroupVersionResource) []*api.Resource
	// Show returns an object as a document in a version of its kind, and Encode the same as JSON. Read is the
	// inverse, with defaults, into an object of its own version. The object has the stored version or, if it is a
	// custom resource, any version. Other objects must have the kind itself. A document that does not fit is an
	// error; strict lists unknown or repeated fields, which are dropped.
	Show(ctx context.Context, obj api.Object, kind schema.GroupVersionKind) (map[string]any, error)
	Encode(ctx context.Context, obj api.Object, kind schema.GroupVersionKind) ([]byte, error)
	Read(ctx context.Context, doc []byte, kind schema.GroupVersionKind, into api.Object) (strict error, err error)
	// Merge merges a patch into a document of the kind, by the kind's schema.
	Merge(kind schema.GroupVersionKind, doc, patch map[string]any) (map[string]any, error)
	// Decide returns the authorizers' decision on any request.
	Decide(ctx context.Context, a *authz.Attributes) (authz.Decision, string, error)
	// Authorize reports whether the user may do something to a resource.
	Authorize(ctx context.Context, user *authn.User, verb string, on schema.GroupVersionResource, subresource,
		namespace, name string) (allowed bool, reason string, err error)
}

// ErrNotFound is the error of Cluster for an object that does not exist.
var ErrNotFound = errors.New("not found")
