// Package api describes kinds, with one registration each. A registration is data: names, scope, Go type, defaults,
// validation, the parts that a status write may change, selectable fields, table columns. There is no I/O here, and
// neither storage nor apiserver is imported.
//
// The set of kinds is not fixed. A Registry returns an immutable Snapshot of the current set. Routes, discovery,
// OpenAPI and the caches follow it.
//
// The registrations are in the folders below, one per group (api/core, api/apps, …), built from api, api/kit,
// api/field and api/naming. api/builtin collects their Kinds. Code outside of api uses only the registry.
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

// Resource is the registration of one kind in one group and version. A function field may be nil if the kind does not
// need it.
type Resource struct {
	Names
	Storage
	Strategy
	Table
}

// Names are the names of a kind in URLs, documents and commands, and its verbs.
type Names struct {
	Group, Version, Kind string
	// ListKind is the kind of lists; it defaults to Kind and "List".
	ListKind string
	// Plural is the resource's name in URLs ("pods"); Singular defaults to the lower-case Kind.
	Plural, Singular string
	ShortNames       []string
	Categories       []string
	Namespaced       bool
	// Deprecation is a warning that every response carries. If empty, it is derived from the Go type's lifecycle.
	Deprecation string
	// UnsupportedVerbs lists the verbs that the kind does not serve, out of the usual eight (create delete
	// deletecollection get list patch update watch).
	UnsupportedVerbs []string
}

// Storage describes the Go type of a kind, and how its objects are stored, converted between versions and selected.
type Storage struct {
	// CreateOnly marks a kind such as SubjectAccessReview: the server answers a POST and does not store the object.
	// See CreateOnlyOf.
	CreateOnly bool
	// Virtual marks a kind such as ComponentStatus: the server computes the objects on request and does not store
	// them. It serves only get and list. See VirtualOf.
	Virtual bool
	// Conversion, if not nil, converts the objects of another registration, which stores them, to this group and
	// version. The type describes how the other fields are used then.
	Conversion *Conversion
	// New and NewList return empty objects of the Go type. A create-only kind has no list.
	New     func() Object
	NewList func() runtime.Object
	// Schema is 0 for built-in kinds. For a kind that a CustomResourceDefinition defines it is a number that no other
	// registration of the process has. A stored document may be older than the schema. It is then brought up to date
	// when it is read.
	Schema uint64
	// Definition is the stored object that defines such a kind.
	Definition *Definition
	// Convert converts objects of any version of such a kind to this version, and keeps their order. It does not
	// change them, and returns an object that already has this version as it is. It may take long and ends with ctx.
	// Requests read and write objects of such a kind in their own version: all functions of the registration take that
	// version, and Conversion, if it is not nil, only identifies the storage version.
	Convert func(ctx context.Context, objs []Object) ([]Object, error)
	// WebhookConverted reports that a webhook does the conversion. Convert is then called with many objects at once.
	WebhookConverted bool
	// Unserved lists the versions of such a kind that are not served. Only the kind's stored registration has it. They
	// are not in the registry, but stored objects may have been written in them, and managedFields may name them.
	Unserved []*Resource
	// ReadYourWrites reports whether objects of the kind affect how other requests are authorized, queued or admitted.
	// The response to a write of such an object waits until the server's own caches have it, so that it applies to the
	// client's next request (read your writes).
	ReadYourWrites bool
	// BindsTokens reports whether tokens may be bound to objects of the kind. Such tokens become invalid with the
	// object.
	BindsTokens bool
	// Expires limits the lifetime of the objects to the server's event TTL.
	Expires bool
	// Fields are the JSON paths that field selectors may use besides metadata.name and metadata.namespace. FieldIndex
	// is the indexed one.
	Fields     []string
	FieldIndex string
	// FieldPaths has the JSON path in the stored document for each of the Fields with a name other than that path.
	FieldPaths map[string]string
	// FieldZero has the value of fields that the document omits, where it is not "".
	FieldZero map[string]string
	// ConvertedFields are the JSON paths that field selectors of other served versions may use in addition to Fields.
	ConvertedFields []string
}

// Strategy has the rules for writes and deletions of a kind: defaults, validation, subresources. It corresponds to the
// strategies of kube-apiserver's registry.
type Strategy struct {
	// Default sets fields that the client left out, as Kubernetes does. It must be idempotent.
	Default func(obj Object)
	// PrepareCreate and PrepareUpdate reset fields that a client may not set. The server itself resets the status and
	// the generation, according to Status and Generation below.
	PrepareCreate func(obj Object)
	PrepareUpdate func(obj, old Object)
	// SetRequester records the creator of the object, for kinds that store it. It must overwrite the client's value.
	SetRequester func(obj Object, user authenticationv1.UserInfo)
	// SetStatusTimes sets the times of new entries in a status that clients may leave out.
	SetStatusTimes func(obj, old Object, now metav1.Time)
	// Validate, ValidateCreate and ValidateUpdate return an error for each invalid field. Object metadata other than
	// the form of the name has been validated before. ValidateCreate and ValidateUpdate run after Validate: the first
	// has the checks of new objects alone, the second the checks against the old object (immutability).
	Validate       func(obj Object) field.ErrorList
	ValidateCreate func(obj Object) field.ErrorList
	ValidateUpdate func(obj, old Object) field.ErrorList
	// Check makes the checks of a kind whose schema is known only at run time. It may take long. When ctx ends, it
	// returns ctx's error. It runs after the other checks, and for writes to a subresource as well.
	Check func(ctx context.Context, obj, old Object, subresource string) (errs field.ErrorList, warnings []string,
		err error)
	// ValidateName returns the reasons why a name is not allowed. nil means a DNS-1123 subdomain (apimachinery's
	// NameIsDNSSubdomain). prefix is true for generateName.
	ValidateName func(name string, prefix bool) []string
	// GenericMetadata checks objects' metadata only against the rules for all kinds, as Kubernetes does for custom
	// resources and a few built-in kinds. A finalizer then needs no domain. On an update, the name, which cannot
	// change, then only has to be a segment of a path.
	GenericMetadata bool
	// References are the fields that contain names of other objects. nil means owner references alone.
	References *References
	// Permit returns an error for each field that the caller may not write. nil permits every valid write.
	Permit Permit
	// Grants returns the rights that an object grants to users. old is nil for a create. Grants is nil for most kinds.
	Grants func(obj, old Object) Grant
	// Warnings returns the Warning headers of a successful create (old is nil) or update.
	Warnings func(obj, old Object) []string
	// Status, if not nil, gives the kind a /status subresource: writes to the object keep the old status, and writes
	// to the status keep everything else.
	Status *Status
	// Scale, if not nil, gives the kind a /scale subresource.
	Scale *Scale
	// Subresources lists the subresources other than status and scale. They write a part of the object, or act on it.
	Subresources []Subresource
	// Generation reports whether metadata.generation counts changes of the spec (all but metadata and status).
	Generation bool
	// GenerationCountsAnnotations reports whether metadata.generation counts changes of the annotations as well.
	GenerationCountsAnnotations bool
	// CreateOnUpdate lets an update create an object that does not exist. Conditional requires an update to carry a
	// resourceVersion. Both differ by kind, as in Kubernetes.
	CreateOnUpdate, Conditional bool
	// DeleteGrace returns the grace period of a delete in seconds, from the object and the period that the client
	// requested (nil if none). If DeleteGrace is nil, the object is deleted at once. Otherwise it is always marked as
	// being deleted first, even if the grace period is zero.
	DeleteGrace func(obj Object, requested *int64) int64
	// ReturnDeleted makes the response of a delete the deleted object instead of a Status.
	ReturnDeleted bool
	// Terminate changes an object, beyond its metadata, when its deletion begins.
	Terminate func(obj Object)
	// TerminateOnly means that a deletion begins with deletionTimestamp and Terminate alone: the object has no grace
	// period, its generation is not incremented, and the propagation policy is ignored.
	TerminateOnly bool
	// HasFinalizers reports whether an object that is being deleted has finalizers besides metadata.finalizers, such
	// as those of a Namespace's spec.
	HasFinalizers func(obj Object) bool
	// DefaultPropagation is the propagation policy of a delete that specifies none. Empty means background.
	DefaultPropagation metav1.DeletionPropagation
}

// Table describes the table that the server prints a kind's objects in, for kubectl get.
type Table struct {
	// Columns describes the server-side table: kubectl get (Priority 0) and -o wide (1). Cells returns one value for
	// each column, or an Elapsed if it depends on the time. Name and Age are ordinary columns. A create-only kind has
	// neither Columns nor Cells.
	Columns []metav1.TableColumnDefinition
	Cells   func(obj Object) []any
	// RowConditions returns conditions of a row that no column shows.
	RowConditions func(obj Object) []metav1.TableRowCondition
}

// Status reads and writes a kind's status.
type Status struct {
	// Copy copies the whole status from src to dst. A write to the object keeps its status with it.
	Copy func(dst, src Object)
	// Write, if not nil, replaces Copy in a write to /status. It is for a status with parts that belong to another
	// subresource or depend on each other.
	Write func(dst, src Object)
	// Reset clears the status of a new object.
	Reset func(obj Object)
	// Validate checks a status write; may be nil.
	Validate func(obj, old Object) field.ErrorList
	// Permit returns an error for each field that the caller may not write. It may be nil.
	Permit Permit
	// Metadata lists the parts of the metadata that a write to the status changes as well: all that the kind's status
	// strategy in Kubernetes does not reset. Network plugins annotate Nodes, and load balancer controllers put
	// finalizers on Services, without permission to write the objects themselves.
	Metadata Metadata
}

// Scale maps a kind to autoscaling/v1 Scale.
type Scale struct {
	// Get returns the desired and the actual replicas, and the pods' selector as a string.
	Get func(obj Object) (spec, status int32, selector string)
	Set func(obj Object, replicas int32)
	// Check reports whether an object has the field of the desired replicas. It returns an error if the object has
	// another type of value in a field that a Scale reads. It is nil if every object has a Scale.
	Check func(obj Object) (found bool, err error)
	// Path leads to the desired replicas. nil means spec.replicas.
	Path []string
}

// ReplicasPath returns the path of the desired replicas in an object.
func (s *Scale) ReplicasPath() []string {
	if s.Path != nil {
		return s.Path
	}
	return []string{"spec", "replicas"}
}

// Subresource is a path below an object.
type Subresource struct {
	Name string
	// Group, Version and Kind of the objects that are read or written at this path.
	Group, Version, Kind string
	// New returns an empty object of that kind, if it differs from the resource's own kind.
	New func() Object
	// Verbs are the verbs of the API: get, update, patch, create.
	Verbs []string
	// Connect marks a stream to a node, a pod or a service, instead of objects.
	Connect bool
	// ConnectOptions builds the options of a connect request from the query and from the path below the subresource,
	// as a document of the Kind without kind and apiVersion. It returns nil if there are none, as for a log.
	ConnectOptions func(query url.Values, path string) map[string]any
	// Copy, for subresources of the object's own kind, copies the part that a write to the subresource may change.
	// Everything else except Metadata stays as it is.
	Copy     func(dst, src Object)
	Metadata Metadata
	// Validate checks a write after Copy; may be nil.
	Validate func(obj, old Object) field.ErrorList
	// Permit returns an error for each field that the caller may not write. It may be nil.
	Permit Permit
}

// Write copies the parts that a write to the subresource may change from src to dst.
func (s *Subresource) Write(dst, src Object) {
	s.Copy(dst, src)
	s.Metadata.Copy(dst, src)
}

// AllSubresources returns Subresources, status and scale, sorted by name.
func (r *Resource) AllSubresources() []Subresource {
	subs := slices.Clone(r.Subresources)
	for _, sub := range []*Subresource{r.statusSubresource(), r.scaleSubresource()} {
		if sub != nil {
			subs = append(subs, *sub)
		}
	}
	slices.SortFunc(subs, func(a, b Subresource) int { return strings.Compare(a.Name, b.Name) })
	return subs
}

// statusSubresource returns the subresource that Status describes, or nil.
func (r *Resource) statusSubresource() *Subresource {
	if r.Status == nil {
		return nil
	}
	write := r.Status.Copy
	if r.Status.Write != nil {
		write = r.Status.Write
	}
	return &Subresource{Name: "status", Group: r.Group, Version: r.Version, Kind: r.Kind, Verbs: objectVerbs,
		Copy: write, Metadata: r.Status.Metadata, Validate: r.Status.Validate, Permit: r.Status.Permit}
}

// scaleSubresource returns the subresource that Scale describes, or nil.
func (r *Resource) scaleSubresource() *Subresource {
	if r.Scale == nil {
		return nil
	}
	return &Subresource{Name: "scale", Group: "autoscaling", Version: "v1", Kind: "Scale", Verbs: objectVerbs,
		New: func() Object { return &autoscalingv1.Scale{} }}
}

// objectVerbs are the verbs of status and scale. It is read-only.
var objectVerbs = []string{"get", "patch", "update"}

// SelectablePaths returns the JSON paths of Fields, in the order of Fields, followed by ConvertedFields.
func (r *Resource) SelectablePaths() []string {
	if len(r.FieldPaths) == 0 && len(r.ConvertedFields) == 0 {
		return r.Fields
	}
	paths := slices.Concat(r.Fields, r.ConvertedFields)
	for i, name := range paths {
		if path, ok := r.FieldPaths[name]; ok {
			paths[i] = path
		}
	}
	return paths
}

// Subresource returns the subresource with a name, or nil. The caller must not change it.
func (r *Resource) Subresource(name string) *Subresource {
	switch name {
	case "status":
		if sub := r.statusSubresource(); sub != nil {
			return sub
		}
	case "scale":
		if sub := r.scaleSubresource(); sub != nil {
			return sub
		}
	}
	i := slices.IndexFunc(r.Subresources, func(sub Subresource) bool { return sub.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Subresources[i]
}

// GVK returns the kind with its group and version.
func (r *Resource) GVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
}

// ListGVK returns the kind of lists with its group and version.
func (r *Resource) ListGVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: cmp.Or(r.ListKind, r.Kind+"List")}
}

// GroupResource returns the resource with its group, as it appears in errors.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}

// GroupVersion returns the resource's group and version.
func (r *Resource) GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: r.Group, Version: r.Version}
}

// Stored returns the registration that stores the objects: r itself, unless r has a Conversion.
func (r *Resource) Stored() *Resource {
	if r.Conversion != nil {
		return r.Conversion.Stored
	}
	return r
}

// Collection returns the name of the stored objects' collection: "<group or core>/<plural>".
func (r *Resource) Collection() string {
	r = r.Stored()
	if r.Group == "" {
		return "core/" + r.Plural
	}
	return r.Group + "/" + r.Plural
}

// deprecation returns kube-apiserver's warning for a deprecated kind, from the lifecycle methods of the Go type.
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
	if removed, ok := obj.(interface{ APILifecycleRemoved() (major, minor int) }); ok {
		if major, minor := removed.APILifecycleRemoved(); major != 0 || minor != 0 {
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
