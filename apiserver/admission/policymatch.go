package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
)

// matcher is a MatchResources with its selectors parsed.
type matcher struct {
	*admissionv1.MatchResources
	namespaces, objects labels.Selector
	err                 error
}

func newMatcher(m *admissionv1.MatchResources) matcher {
	if m == nil {
		return matcher{err: errors.New("policy contained no match constraints, a required field")}
	}
	parsed := matcher{MatchResources: m}
	for _, s := range []struct {
		name string
		from *metav1.LabelSelector
		to   *labels.Selector
	}{{"namespace", m.NamespaceSelector, &parsed.namespaces}, {"object", m.ObjectSelector, &parsed.objects}} {
		if s.from == nil {
			parsed.err = fmt.Errorf("a nil %s selector was passed, please ensure selectors are initialized properly",
				s.name)
			return parsed
		}
		if *s.to, parsed.err = metav1.LabelSelectorAsSelector(s.from); parsed.err != nil {
			return parsed
		}
	}
	return parsed
}

// matched is the resource and the kind in which a policy sees a request.
type matched struct {
	resource schema.GroupVersionResource
	kind     schema.GroupVersionKind
}

// matches reports whether the policy applies to the request. Another version of its resource matches too, unless
// the policy is Exact. An error in a selector counts only if all else matches.
func (m *matcher) matches(ctx context.Context, q *request) (matched, bool, error) {
	if m.err != nil {
		return matched{}, false, m.err
	}
	if !m.matchesObject(q.Attributes) {
		return matched{}, false, nil
	}
	if _, excluded := m.matchesRules(q, m.ExcludeResourceRules); excluded {
		return matched{}, false, nil
	}
	in, ok := matched{q.Resource, q.Kind}, true
	if len(m.ResourceRules) > 0 {
		in, ok = m.matchesRules(q, m.ResourceRules)
	}
	if !ok {
		return matched{}, false, nil
	}
	// The namespace is read last: most policies do not match anyway.
	ok, err := m.matchesNamespace(ctx, q)
	return in, ok && err == nil, err
}

func (m *matcher) matchesObject(a *Attributes) bool {
	if m.objects.Empty() {
		return true
	}
	return a.Object != nil && m.objects.Matches(labels.Set(a.Object.GetLabels())) ||
		a.Old != nil && m.objects.Matches(labels.Set(a.Old.GetLabels()))
}

func (m *matcher) matchesNamespace(ctx context.Context, q *request) (bool, error) {
	if m.namespaces.Empty() {
		return true, nil
	}
	if q.GroupResource() == namespaces {
		subject := q.Object
		if subject == nil || q.Subresource != "" {
			subject = q.Old
		}
		return subject == nil || m.namespaces.Matches(labels.Set(subject.GetLabels())), nil
	}
	if q.Namespace == "" {
		return true, nil
	}
	ns, err := q.namespace(ctx)
	if err != nil {
		return false, err
	}
	return m.namespaces.Matches(labels.Set(ns.Labels)), nil
}

func (m *matcher) matchesRules(q *request, rules []admissionv1.NamedRuleWithOperations) (matched, bool) {
	possible := false // in another version
	for i := range rules {
		if !fits(&rules[i], q.Attributes) {
			continue
		}
		if possible = true; isAbout(&rules[i], q.Resource) {
			return matched{q.Resource, q.Kind}, true
		}
	}
	if !possible || m.MatchPolicy == nil || *m.MatchPolicy == admissionv1.Exact {
		return matched{}, false
	}
	for i := range rules { // earlier rules first, independently of the order of versions
		if !fits(&rules[i], q.Attributes) {
			continue
		}
		for _, res := range q.versions() {
			other := res.GroupVersion().WithResource(res.Plural)
			if other == q.Resource || !isAbout(&rules[i], other) {
				continue
			}
			kind := q.Kind
			if q.ofResource() {
				kind = res.GVK()
			}
			return matched{other, kind}, true
		}
	}
	return matched{}, false
}

// fits reports whether a rule would match the request in some version of its resource.
func fits(r *admissionv1.NamedRuleWithOperations, a *Attributes) bool {
	return inScope(r.Scope, a) && named(r.Operations, admissionv1.OperationType(a.Operation)) &&
		slices.ContainsFunc(r.Resources, func(name string) bool {
			return isResource(name, a.Resource.Resource, a.Subresource)
		}) &&
		(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, nameOf(a)))
}

// isAbout reports whether a rule names the group and the version of a resource.
func isAbout(r *admissionv1.NamedRuleWithOperations, resource schema.GroupVersionResource) bool {
	return named(r.APIGroups, resource.Group) && named(r.APIVersions, resource.Version)
}

func named[T ~string](list []T, name T) bool {
	return slices.Contains(list, name) || slices.Contains(list, "*")
}

// isResource compares a resource with a pattern: "pods", "pods/status", "pods/*", "*/scale", "*" or "*/*".
func isResource(pattern, resource, subresource string) bool {
	wantResource, wantSub, _ := strings.Cut(pattern, "/")
	return (wantResource == "*" || wantResource == resource) && (wantSub == "*" || wantSub == subresource)
}

// inScope reports whether a request is in a rule's scope. A Namespace is cluster-scoped.
func inScope(scope *admissionv1.ScopeType, a *Attributes) bool {
	if scope == nil || *scope == admissionv1.AllScopes {
		return true
	}
	namespaced := a.Namespace != "" && a.GroupResource() != namespaces
	return namespaced == (*scope == admissionv1.NamespacedScope)
}

// nameOf returns the name of the request's object.
func nameOf(a *Attributes) string {
	if a.Name == "" && a.Object != nil {
		return a.Object.GetName()
	}
	return a.Name
}

// request is a write in the form that policies and webhooks need. It caches the data that they have used. It is not
// safe for concurrent use.
type request struct {
	*Attributes
	cluster Cluster
	ns      *corev1.Namespace
	others  []*api.Resource
	docs    map[schema.GroupVersionKind]*documents
}

func newRequest(a *Attributes, cluster Cluster) *request {
	return &request{Attributes: a, cluster: cluster}
}

// namespace returns the request's namespace. The request must have one.
func (q *request) namespace(ctx context.Context) (*corev1.Namespace, error) {
	if q.ns != nil {
		return q.ns, nil
	}
	obj, err := q.cluster.Get(ctx, namespaces, "", q.Namespace)
	if errors.Is(err, ErrNotFound) {
		return nil, apierrors.NewNotFound(namespaces, q.Namespace)
	}
	if err != nil {
		return nil, err
	}
	q.ns = obj.(*corev1.Namespace)
	return q.ns, nil
}

func (q *request) versions() []*api.Resource {
	if q.others == nil {
		q.others = q.cluster.Versions(q.Resource)
	}
	return q.others
}

// ofResource reports whether the request's objects have the resource's own kind, and not a subresource's.
func (q *request) ofResource() bool {
	res := q.cluster.Served(q.Kind)
	return res != nil && res.Plural == q.Resource.Resource
}

// source identifies the object that a policy or a webhook was compiled from.
type source struct {
	uid        types.UID
	generation int64
}

func sourceOf(obj api.Object) source { return source{obj.GetUID(), obj.GetGeneration()} }

// exempt reports whether policies do not apply to a resource: their own kinds, so that a bad policy can be removed,
// and reviews, which do not change objects.
func exempt(resource schema.GroupResource) bool {
	switch resource.Group {
	case policyGroup:
		return strings.HasSuffix(resource.Resource, "admissionpolicies") ||
			strings.HasSuffix(resource.Resource, "admissionpolicybindings")
	case "authentication.k8s.io", "authorization.k8s.io":
		return true
	}
	return false
}
