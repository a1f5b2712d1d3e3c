package match

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// Request is a write in the form that policies and webhooks need. It caches the data that they have used. It is not
// safe for concurrent use.
type Request struct {
	*Attributes
	Cluster Cluster
	ns      *corev1.Namespace
	others  []*api.Resource
	docs    map[schema.GroupVersionKind]*documents
}

// NewRequest returns a request without cached data.
func NewRequest(a *Attributes, cluster Cluster) *Request {
	return &Request{Attributes: a, Cluster: cluster}
}

// namespace returns the request's namespace. The request must have one.
func (q *Request) namespace(ctx context.Context) (*corev1.Namespace, error) {
	if q.ns != nil {
		return q.ns, nil
	}
	obj, err := q.Cluster.Get(ctx, Namespaces, "", q.Namespace)
	if errors.Is(err, ErrNotFound) {
		return nil, apierrors.NewNotFound(Namespaces, q.Namespace)
	}
	if err != nil {
		return nil, err
	}
	q.ns = obj.(*corev1.Namespace)
	return q.ns, nil
}

func (q *Request) versions() []*api.Resource {
	if q.others == nil {
		q.others = q.Cluster.Versions(q.Resource)
	}
	return q.others
}

// ofResource reports whether the request's objects have the resource's own kind, and not a subresource's.
func (q *Request) ofResource() bool {
	res := q.Cluster.Served(q.Kind)
	return res != nil && res.Plural == q.Resource.Resource
}

// documents are the request's objects in one version.
type documents struct{ object, old *cel.Document }

// in returns the request's objects in a kind.
func (q *Request) in(ctx context.Context, kind schema.GroupVersionKind) *documents {
	if d, ok := q.docs[kind]; ok {
		return d
	}
	if q.docs == nil {
		q.docs = map[schema.GroupVersionKind]*documents{}
	}
	d := &documents{object: q.document(ctx, q.Object, kind), old: q.document(ctx, q.Old, kind)}
	if q.Document != nil {
		d.object = &cel.Document{Make: func() (any, error) { return q.Document, nil }}
	}
	q.docs[kind] = d
	return d
}

func (q *Request) document(ctx context.Context, obj api.Object, kind schema.GroupVersionKind) *cel.Document {
	if obj == nil {
		return nil
	}
	return &cel.Document{Make: func() (any, error) { return q.Cluster.Show(ctx, obj, kind) }}
}

// Changed drops the documents of the object. It must be called when the object has been changed.
func (q *Request) Changed() { q.docs = nil }

// Bindings returns the variables of expressions, without params and namespaceObject, which only policies have.
func (q *Request) Bindings(ctx context.Context, in Matched) cel.Bindings {
	docs := q.in(ctx, in.Kind)
	return cel.Bindings{
		Object: docs.object, OldObject: docs.old,
		Request:    &cel.Document{Make: func() (any, error) { return q.admissionRequest(in), nil }},
		Authorizer: rights{ctx, q.Cluster, q.User},
		Resource: cel.Resource{Group: q.Resource.Group, Resource: q.Resource.Resource, Subresource: q.Subresource,
			Namespace: q.Namespace, Name: nameOf(q.Attributes)},
	}
}

// admissionRequest returns the AdmissionRequest, without its UID and its objects.
func (q *Request) admissionRequest(in Matched) map[string]any {
	r := map[string]any{
		"kind": kindDocument(in.Kind), "resource": resourceDocument(in.Resource),
		"requestKind": kindDocument(q.Kind), "requestResource": resourceDocument(q.Resource),
		"operation": string(q.Operation), "dryRun": q.DryRun, "userInfo": userDocument(q.User),
	}
	for key, text := range map[string]string{"subResource": q.Subresource, "requestSubResource": q.Subresource,
		"name": nameOf(q.Attributes), "namespace": q.Within()} {
		if text != "" {
			r[key] = text
		}
	}
	r["options"] = nil
	if q.Options != nil {
		r["options"] = q.Options()
	}
	return r
}

func kindDocument(k schema.GroupVersionKind) map[string]any {
	return map[string]any{"group": k.Group, "version": k.Version, "kind": k.Kind}
}

func resourceDocument(r schema.GroupVersionResource) map[string]any {
	return map[string]any{"group": r.Group, "version": r.Version, "resource": r.Resource}
}

func userDocument(u *authn.User) map[string]any {
	doc := map[string]any{}
	if u.Name != "" {
		doc["username"] = u.Name
	}
	if u.UID != "" {
		doc["uid"] = u.UID
	}
	if len(u.Groups) > 0 {
		doc["groups"] = u.Groups
	}
	if len(u.Extra) > 0 {
		doc["extra"] = u.Extra
	}
	return doc
}

// NamespaceDocument returns the variable namespaceObject: nil for cluster-scoped requests.
func (q *Request) NamespaceDocument(ctx context.Context) (*cel.Document, error) {
	if q.Namespace == "" || q.GroupResource() == Namespaces {
		return nil, nil
	}
	ns, err := q.namespace(ctx)
	if err != nil {
		return nil, err
	}
	return &cel.Document{Make: func() (any, error) {
		shown := &corev1.Namespace{ObjectMeta: *ns.ObjectMeta.DeepCopy(), Spec: ns.Spec, Status: ns.Status}
		shown.ManagedFields, shown.OwnerReferences, shown.SelfLink = nil, nil, ""
		return runtime.DefaultUnstructuredConverter.ToUnstructured(shown)
	}}, nil
}

// rights lets expressions query the authorizers.
type rights struct {
	ctx     context.Context
	cluster Cluster
	user    *authn.User
}

// Authorize implements cel.Authorizer.
func (r rights) Authorize(c cel.Check) (bool, string, error) {
	a := &authz.Attributes{User: r.user, Verb: c.Verb, Path: c.Path}
	if c.As != nil {
		a.User = &authn.User{Name: c.As.Username, Groups: c.As.Groups}
	}
	if c.Path == "" {
		a.Group, a.Version, a.Resource, a.Subresource, a.Namespace, a.Name = c.Group, "*", c.Resource, c.Subresource,
			c.Namespace, c.Name
		if selector, err := fields.ParseSelector(c.FieldSelector); c.FieldSelector != "" && err == nil {
			a.Fields = selector.Requirements()
		}
		a.Labels = c.LabelSelector
	}
	decision, reason, err := r.cluster.Decide(r.ctx, a)
	return decision == authz.Allow, reason, err
}
