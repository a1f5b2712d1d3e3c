// Package api is what exists: one registration per kind. A registration is data: names,
// scope, Go type, defaults, validation, what a status write may touch, selectable fields,
// table columns. There is no I/O here, and neither storage nor apiserver is imported.
//
// The set of kinds is not fixed. A Registry hands out an immutable Snapshot of the current
// set; routes, discovery, OpenAPI and the caches follow it.
package api

import (
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api/field"
)

// Object is what every kind's Go type is.
type Object interface {
	runtime.Object
	metav1.Object
}

// Resource is one kind under one group and version, as it is registered.
// Function fields may be nil where a kind has nothing to do there.
type Resource struct {
	Group, Version, Kind string
	// Plural is the resource's name in URLs ("pods"); Singular defaults to the lower-case Kind.
	Plural, Singular string
	ShortNames       []string
	Categories       []string
	Namespaced       bool

	// Review says that the kind is a question: a POST of it is answered by a function of the
	// server's, and nothing is stored. It serves no verb but create. See review.
	Review bool

	// Computed says that the server works the objects out when they are asked for, and does not
	// keep them. It serves no verbs but get and list. See computed.
	Computed bool

	// View, when not nil, says that the objects are another registration's, shown in this
	// group and version. See View for what that means to the other fields.
	View *View

	// New and NewList return empty objects of the Go type. A review has no list.
	New     func() Object
	NewList func() runtime.Object

	// Default fills what the user left out, as Kubernetes does. It must be idempotent.
	Default func(obj Object)
	// PrepareCreate and PrepareUpdate reset what a client may not set by this verb beyond
	// status and generation, which the server resets by Status and Generation below.
	PrepareCreate func(obj Object)
	PrepareUpdate func(obj, old Object)
	// Requester notes who creates the object, for kinds that keep that. What a client says of it itself
	// must not stay.
	Requester func(obj Object, by authenticationv1.UserInfo)
	// Touch gives the time to what is new in a status that clients may leave without.
	Touch func(obj, old Object, now metav1.Time)
	// Validate and ValidateUpdate refuse what the kind does not allow. Object metadata
	// other than the name's form has been validated already. ValidateUpdate is called after
	// Validate, and holds only what depends on the old object (immutability); ValidateCreate
	// likewise, and holds what is refused of new objects alone.
	Validate       func(obj Object) field.ErrorList
	ValidateCreate func(obj Object) field.ErrorList
	ValidateUpdate func(obj, old Object) field.ErrorList
	// ValidateName says why a name is not allowed; nil means a DNS-1123 subdomain
	// (apimachinery's NameIsDNSSubdomain). prefix is true for generateName.
	ValidateName func(name string, prefix bool) []string
	// Permit refuses what hangs on who writes; nil permits all that is valid.
	Permit Permit
	// Warnings are sent as Warning headers with a create (old is nil) or update that succeeds.
	Warnings func(obj, old Object) []string

	// Deprecation is a warning that every response carries. Where it is empty it is made of
	// what the Go type says of its life cycle.
	Deprecation string

	// Status, when not nil, gives the kind a /status subresource: main writes keep the old
	// status, status writes keep all else.
	Status *Status
	// Scale, when not nil, gives the kind a /scale subresource.
	Scale *Scale
	// Parts are further subresources that write a part of the object or act on it.
	Parts []Subresource
	// Generation says whether metadata.generation counts changes of the spec
	// (everything but metadata and status).
	Generation bool
	// GenerationCountsAnnotations says that it counts changes of the annotations as well.
	GenerationCountsAnnotations bool
	// CreateOnUpdate says that an update of what is not there creates it. Conditional says that
	// an update must name the resourceVersion it was made on. Both are as in Kubernetes, which
	// has its reasons kind by kind.
	CreateOnUpdate, Conditional bool
	// NoVerbs are verbs of the usual eight (create delete deletecollection get list patch
	// update watch) which the kind does not serve.
	NoVerbs []string

	// DeleteGrace gives the grace period in seconds for a delete, from what the client asked
	// (nil: nothing) and the object; nil DeleteGrace means the kind is deleted at once.
	// Pods: nil asks for spec.terminationGracePeriodSeconds.
	DeleteGrace func(obj Object, asked *int64) int64
	// Expires says that objects are kept for the server's event TTL only.
	Expires bool
	// Terminate marks an object whose deletion has begun, beyond its metadata.
	Terminate func(obj Object)
	// Held reports that something besides metadata.finalizers keeps a deleted object.
	Held func(obj Object) bool
	// DefaultPropagation is used when a delete names none: "background" if empty.
	DefaultPropagation metav1.DeletionPropagation

	// Fields are the JSON paths that field selectors may name besides metadata.name and
	// metadata.namespace. FieldIndex is the one of them worth an index.
	Fields     []string
	FieldIndex string
	// FieldPaths gives the JSON path of those Fields whose name is not their path in the
	// stored document.
	FieldPaths map[string]string
	// FieldZero is what a field reads as where the document leaves it out, if not "".
	FieldZero map[string]string

	// Columns are the server-side table: kubectl get (Priority 0) and -o wide (1).
	// Every Cells result has one value for each column. Name and Age are ordinary columns. A review has neither.
	Columns []metav1.TableColumnDefinition
	Cells   func(obj Object) []any
	// RowConditions say of a row what no column shows.
	RowConditions func(obj Object) []metav1.TableRowCondition
}

// Status gives and takes a kind's status.
type Status struct {
	// Copy sets to's status to from's, all of it: by it a write to the object itself keeps the status.
	Copy func(to, from Object)
	// Write is what a write to /status does instead of Copy, where parts of the status are another
	// subresource's or hang together; nil is Copy.
	Write func(to, from Object)
	// Reset clears the status (on create).
	Reset func(obj Object)
	// Validate checks a status write; may be nil.
	Validate func(obj, old Object) field.ErrorList
	// Permit refuses what hangs on who writes; may be nil.
	Permit Permit
	// Metadata is what a write to the status changes of the metadata as well. It follows the kind's status strategy in
	// Kubernetes: what that does not reset is kept. Network plugins annotate Nodes, and controllers of load balancers put
	// finalizers on Services, without a right to the objects themselves.
	Metadata Metadata
}

// Scale maps a kind to autoscaling/v1 Scale.
type Scale struct {
	// Get returns the replicas wanted, the replicas there are and the pods' selector as a string.
	Get func(obj Object) (spec, status int32, selector string)
	Set func(obj Object, replicas int32)
}

// Subresource is a path below an object.
type Subresource struct {
	Name string
	// Group, Version and Kind of what is read or written there.
	Group, Version, Kind string
	// Verbs in the API's words: get, update, patch, create.
	Verbs []string
	// Connect says that requests go on to a node, a pod or a service, and are no objects.
	Connect bool
	// Copy, for subresources of the object's own kind, moves the part that a write to it
	// may change. All else stays as it is, but for Metadata, which it changes as well.
	Copy     func(to, from Object)
	Metadata Metadata
	// Validate checks a write after Copy; may be nil.
	Validate func(obj, old Object) field.ErrorList
	// Permit refuses what hangs on who writes; may be nil.
	Permit Permit
}

// Write sets what a write to the subresource may change of to to what from has.
func (s *Subresource) Write(to, from Object) {
	s.Copy(to, from)
	s.Metadata.Copy(to, from)
}

// Subresources are the kind's subresources, sorted by name.
func (r *Resource) Subresources() []Subresource {
	subs := slices.Clone(r.Parts)
	verbs := []string{"get", "patch", "update"}
	if r.Status != nil {
		write := r.Status.Copy
		if r.Status.Write != nil {
			write = r.Status.Write
		}
		subs = append(subs, Subresource{Name: "status", Group: r.Group, Version: r.Version, Kind: r.Kind,
			Verbs: verbs, Copy: write, Metadata: r.Status.Metadata, Validate: r.Status.Validate, Permit: r.Status.Permit})
	}
	if r.Scale != nil {
		subs = append(subs, Subresource{Name: "scale", Group: "autoscaling", Version: "v1", Kind: "Scale", Verbs: verbs})
	}
	slices.SortFunc(subs, func(a, b Subresource) int { return strings.Compare(a.Name, b.Name) })
	return subs
}

// SelectablePaths are the JSON paths of Fields, in their order.
func (r *Resource) SelectablePaths() []string {
	if len(r.FieldPaths) == 0 {
		return r.Fields
	}
	paths := slices.Clone(r.Fields)
	for i, name := range paths {
		if path, ok := r.FieldPaths[name]; ok {
			paths[i] = path
		}
	}
	return paths
}

// Subresource finds a subresource by its name, or nil.
func (r *Resource) Subresource(name string) *Subresource {
	for _, sub := range r.Subresources() {
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

// GroupResource is the resource with its group, as errors name it.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}

// GroupVersion is the resource's group and version.
func (r *Resource) GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: r.Group, Version: r.Version}
}

// Stored is the registration under which the objects are stored: r itself, but for a view.
func (r *Resource) Stored() *Resource {
	if r.View != nil {
		return r.View.Of
	}
	return r
}

// Collection names where the objects are stored: "<group or core>/<plural>".
func (r *Resource) Collection() string {
	r = r.Stored()
	if r.Group == "" {
		return "core/" + r.Plural
	}
	return r.Group + "/" + r.Plural
}

// deprecation is what kube-apiserver warns of, from the life cycle that generated code or
// its author has given a Go type.
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
