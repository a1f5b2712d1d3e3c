// Package api describes kinds: one registration each. A registration is data: names, scope, Go type,
// defaults, validation, the parts that a status write may change, selectable fields, table columns. There
// is no I/O here, and neither storage nor apiserver is imported.
//
// The set of kinds is not fixed. A Registry returns an immutable Snapshot of the current set; routes,
// discovery, OpenAPI and the caches follow it.
//
// Registrations themselves are below: a folder per group (api/core, api/apps, …), whose Kinds api/builtin
// puts together, out of api, api/kit, api/field and api/naming. Code outside of api sees the registry
// alone.
package api

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api/field"
)

// Object is implemented by the Go type of every kind.
type Object interface {
	runtime.Object
	metav1.Object
}

// Resource is the registration of one kind in one group and version. A function field may be nil if the
// kind needs nothing there.
type Resource struct {
	Group, Version, Kind string
	// ListKind is the kind of lists; it defaults to Kind and "List".
	ListKind string
	// Plural is the resource's name in URLs ("pods"); Singular defaults to the lower-case Kind.
	Plural, Singular string
	ShortNames       []string
	Categories       []string
	Namespaced       bool

	// Review marks a create-only kind: the server answers a POST and stores nothing. See ReviewOf.
	Review bool

	// Computed marks a kind whose objects the server computes on request and does not store. It serves get
	// and list alone. See ComputedOf.
	Computed bool

	// View, if not nil, serves another registration's objects in this group and version. View describes
	// what that means for the other fields.
	View *View

	// New and NewList return empty objects of the Go type. A review has no list.
	New     func() Object
	NewList func() runtime.Object

	// Schema, of a kind that a CustomResourceDefinition defines, is a number that no other registration of the
	// process has; it is 0 for built-in kinds. A stored document may be older than the schema, and is then brought
	// up to date when it is read.
	Schema uint64
	// Definition is the stored object that defines such a kind.
	Definition *Definition
	// Convert brings objects of any version of such a kind to this one, in their order. It does not change them, and
	// returns those that are in this version already as they are. It may take long and ends with ctx. Requests read
	// and write objects of such a kind in their own version: all functions of the registration take that one, and
	// View, if it is not nil, only tells where the objects are stored.
	Convert func(ctx context.Context, objs []Object) ([]Object, error)
	// Remote reports that another server does so. It is asked about many objects at once.
	Remote bool
	// Unserved, of such a kind's stored registration, has the kind's versions that are not served. They are not in the
	// registry. Objects may have been written in them, and have managers of fields there.
	Unserved []*Resource

	// Default sets fields that the client left out, as Kubernetes does. It must be idempotent.
	Default func(obj Object)
	// PrepareCreate and PrepareUpdate reset fields that a client may not set, in addition to status and
	// generation, which the server resets by Status and Generation below.
	PrepareCreate func(obj Object)
	PrepareUpdate func(obj, old Object)
	// Requester records the user who creates the object, for kinds that keep it. It must overwrite what the
	// client sent.
	Requester func(obj Object, by authenticationv1.UserInfo)
	// Touch sets the times of new entries in a status that clients may leave out.
	Touch func(obj, old Object, now metav1.Time)
	// Validate, ValidateCreate and ValidateUpdate return what the kind does not allow. Object metadata
	// other than the name's form has been validated already. ValidateCreate and ValidateUpdate run after
	// Validate: the first has the checks of new objects alone, the second those that depend on the old
	// object (immutability).
	Validate       func(obj Object) field.ErrorList
	ValidateCreate func(obj Object) field.ErrorList
	ValidateUpdate func(obj, old Object) field.ErrorList
	// Check has the checks of a kind whose schema is known only at run time. They may take long and end with ctx,
	// whose error they return then. It runs after the other checks, and for writes to a subresource as well.
	Check func(ctx context.Context, obj, old Object, subresource string) (errs field.ErrorList, warnings []string,
		err error)
	// ValidateName returns why a name is not allowed; nil means a DNS-1123 subdomain (apimachinery's
	// NameIsDNSSubdomain). prefix is true for generateName.
	ValidateName func(name string, prefix bool) []string
	// GenericMetadata holds objects' metadata to the rules for all kinds alone, as Kubernetes does for custom
	// resources and a few built-in kinds: a finalizer needs no domain, and the name, which an update cannot
	// change, must then only be a segment of a path.
	GenericMetadata bool
	// References are the fields in which the kind's objects name others; nil has owner references alone.
	References *References
	// Permit returns what the caller may not write; nil permits all that is valid.
	Permit Permit
	// Grants returns what an object grants to users. old is nil for a create. It is nil for most kinds.
	Grants func(obj, old Object) Grant
	// Warnings are sent as Warning headers with a successful create (old is nil) or update.
	Warnings func(obj, old Object) []string

	// Deprecation is a warning that every response carries. If empty, it is derived from the Go type's life
	// cycle.
	Deprecation string

	// Status, if not nil, gives the kind a /status subresource: writes to the object keep the old status,
	// and writes to the status keep all else.
	Status *Status
	// Scale, if not nil, gives the kind a /scale subresource.
	Scale *Scale
	// Subresources are those besides status and scale. They write a part of the object, or act on it.
	Subresources []Subresource
	// Generation reports whether metadata.generation counts changes of the spec (everything but metadata
	// and status).
	Generation bool
	// GenerationCountsAnnotations reports whether it counts changes of the annotations as well.
	GenerationCountsAnnotations bool
	// CreateOnUpdate lets an update create an object that does not exist. Conditional requires an update to
	// carry a resourceVersion. Both follow Kubernetes, which decides kind by kind.
	CreateOnUpdate, Conditional bool
	// NoVerbs are those of the eight usual verbs (create delete deletecollection get list patch update
	// watch) that the kind does not serve.
	NoVerbs []string

	// DeleteGrace returns the grace period of a delete in seconds, from the object and the period that the
	// client asked for (nil if none). If DeleteGrace is nil, the kind is deleted at once. Otherwise an object is always
	// marked as being deleted first, even if it has no grace period.
	DeleteGrace func(obj Object, asked *int64) int64
	// ReturnDeleted makes a delete answer with the object that is gone, rather than with a Status.
	ReturnDeleted bool
	// Governs reports whether authorization, flow control or admission judges other requests by objects of the
	// kind. A write of one is answered when memory has it, so that it holds for the client's next request.
	Governs bool
	// BindsTokens reports whether tokens may be bound to objects of the kind, and end with them.
	BindsTokens bool
	// Expires limits the objects' life to the server's event TTL.
	Expires bool
	// Terminate changes an object, beyond its metadata, when its deletion begins.
	Terminate func(obj Object)
	// TerminateOnly says that a deletion begins with its timestamp and Terminate alone: it has no grace period, and
	// neither raises the generation nor looks at the propagation policy.
	TerminateOnly bool
	// Held reports whether something besides metadata.finalizers keeps a deleted object.
	Held func(obj Object) bool
	// DefaultPropagation applies to a delete that names no policy; empty means background.
	DefaultPropagation metav1.DeletionPropagation

	// Fields are the JSON paths that field selectors may name besides metadata.name and metadata.namespace.
	// FieldIndex is the one of them that is indexed.
	Fields     []string
	FieldIndex string
	// FieldPaths has the JSON path of each of the Fields whose name is not its path in the stored document.
	FieldPaths map[string]string
	// FieldZero has the value of fields that the document leaves out, where that is not "".
	FieldZero map[string]string
	// ViewFields are the JSON paths that field selectors of views may name and Fields does not have.
	ViewFields []string

	// Columns are the server-side table: kubectl get (Priority 0) and -o wide (1). Cells returns one value
	// for each column, an Elapsed where it depends on the time. Name and Age are ordinary columns. A review has neither
	// Columns nor Cells.
	Columns []metav1.TableColumnDefinition
	Cells   func(obj Object) []any
	// RowConditions mark a row in ways that no column shows.
	RowConditions func(obj Object) []metav1.TableRowCondition
}

// Status reads and writes a kind's status.
type Status struct {
	// Copy sets to's whole status to from's, so that a write to the object keeps the status.
	Copy func(to, from Object)
	// Write, if not nil, replaces Copy in a write to /status, for a status of which parts belong to another
	// subresource or depend on each other.
	Write func(to, from Object)
	// Reset clears the status of a new object.
	Reset func(obj Object)
	// Validate checks a status write; may be nil.
	Validate func(obj, old Object) field.ErrorList
	// Permit returns what the caller may not write; may be nil.
	Permit Permit
	// Metadata is the part of the metadata that a write to the status changes as well: all that the kind's
	// status strategy in Kubernetes does not reset. Network plugins annotate Nodes, and controllers of load
	// balancers put finalizers on Services, without permission to write the objects themselves.
	Metadata Metadata
}

// Scale maps a kind to autoscaling/v1 Scale.
type Scale struct {
	// Get returns the desired and the actual replicas, and the pods' selector as a string.
	Get func(obj Object) (spec, status int32, selector string)
	Set func(obj Object, replicas int32)
	// Check reports whether an object has the field of the desired replicas, and an error if it has something else
	// where a Scale's values are. It is nil if every object has a Scale.
	Check func(obj Object) (found bool, err error)
	// Path leads to the desired replicas; nil is spec.replicas.
	Path []string
}

// ReplicasPath leads to the desired replicas in an object.
func (s *Scale) ReplicasPath() []string {
	if s.Path != nil {
		return s.Path
	}
	return []string{"spec", "replicas"}
}

// Subresource is a path below an object.
type Subresource struct {
	Name string
	// Group, Version and Kind of the objects that are read or written there.
	Group, Version, Kind string
	// New returns an empty object of that kind, where it is another one than the resource's own.
	New func() Object
	// Verbs in the API's words: get, update, patch, create.
	Verbs []string
	// Connect marks a stream to a node, a pod or a service, in place of objects.
	Connect bool
	// ConnectOptions returns the options with which a client connects, as a document of the Kind without its
	// kind and apiVersion, from the query and the path below the subresource; nil if there are none, as of a
	// log.
	ConnectOptions func(query url.Values, path string) map[string]any
	// Copy, for subresources of the object's own kind, copies the part that a write to it may change. All
	// else stays as it is, except Metadata.
	Copy     func(to, from Object)
	Metadata Metadata
	// Validate checks a write after Copy; may be nil.
	Validate func(obj, old Object) field.ErrorList
	// Permit returns what the caller may not write; may be nil.
	Permit Permit
}

// Write copies to to the parts of from that a write to the subresource may change.
func (s *Subresource) Write(to, from Object) {
	s.Copy(to, from)
	s.Metadata.Copy(to, from)
}

// AllSubresources are Subresources, status and scale, sorted by name.
func (r *Resource) AllSubresources() []Subresource {
	subs := slices.Clone(r.Subresources)
	verbs := []string{"get", "patch", "update"}
	if r.Status != nil {
		write := r.Status.Copy
		if r.Status.Write != nil {
			write = r.Status.Write
		}
		subs = append(subs, Subresource{Name: "status", Group: r.Group, Version: r.Version, Kind: r.Kind,
			Verbs: verbs, Copy: write, Metadata: r.Status.Metadata, Validate: r.Status.Validate,
			Permit: r.Status.Permit})
	}
	if r.Scale != nil {
		subs = append(subs, Subresource{Name: "scale", Group: "autoscaling", Version: "v1", Kind: "Scale",
			New: func() Object { return &autoscalingv1.Scale{} }, Verbs: verbs})
	}
	slices.SortFunc(subs, func(a, b Subresource) int { return strings.Compare(a.Name, b.Name) })
	return subs
}

// SelectablePaths are the JSON paths of Fields, in the order of Fields, and those of ViewFields.
func (r *Resource) SelectablePaths() []string {
	if len(r.FieldPaths) == 0 && len(r.ViewFields) == 0 {
		return r.Fields
	}
	paths := slices.Concat(r.Fields, r.ViewFields)
	for i, name := range paths {
		if path, ok := r.FieldPaths[name]; ok {
			paths[i] = path
		}
	}
	return paths
}

// Subresource returns the subresource of a name, or nil.
func (r *Resource) Subresource(name string) *Subresource {
	for _, sub := range r.AllSubresources() {
		if sub.Name == name {
			return &sub
		}
	}
	return nil
}

// GVK is the kind with its group and version.
func (r *Resource) GVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
}

// ListGVK is the kind of lists with its group and version.
func (r *Resource) ListGVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: cmp.Or(r.ListKind, r.Kind+"List")}
}

// GroupResource is the resource with its group, as errors name it.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}

// GroupVersion is the resource's group and version.
func (r *Resource) GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: r.Group, Version: r.Version}
}

// Stored is the registration under which the objects are stored: r itself, unless r is a view.
func (r *Resource) Stored() *Resource {
	if r.View != nil {
		return r.View.Of
	}
	return r
}

// Collection is the name under which the objects are stored: "<group or core>/<plural>".
func (r *Resource) Collection() string {
	r = r.Stored()
	if r.Group == "" {
		return "core/" + r.Plural
	}
	return r.Group + "/" + r.Plural
}

// deprecation is kube-apiserver's warning of a deprecated kind, from the life cycle in the Go type.
func (r *Resource) deprecation() string {
	obj := r.New()
	old, ok := obj.(interface{ APILifecycleDeprecated() (major, minor int) })
	if !ok {
		return ""
	}
	major, minor := old.APILifecycleDeprecated()
	if major == 0 && minor == 0 {
		return ""
	}
	text := fmt.Sprintf("%s %s is deprecated in v%d.%d+", r.GroupVersion(), r.Kind, major, minor)
	if gone, ok := obj.(interface{ APILifecycleRemoved() (major, minor int) }); ok {
		if major, minor := gone.APILifecycleRemoved(); major != 0 || minor != 0 {
			text += fmt.Sprintf(", unavailable in v%d.%d+", major, minor)
		}
	}
	if new, ok := obj.(interface {
		APILifecycleReplacement() schema.GroupVersionKind
	}); ok {
		if gvk := new.APILifecycleReplacement(); !gvk.Empty() {
			text += fmt.Sprintf("; use %s %s", gvk.GroupVersion(), gvk.Kind)
		}
	}
	return text
}
