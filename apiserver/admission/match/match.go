// Package match decides whether an admission webhook or an admission policy applies to a write, and in which version
// of its resource it sees the write. The packages policy and webhook beside it share it.
//
// A write is described by Attributes (attributes.go). A Request (request.go) is a write with the data that rules and
// expressions need of it, from the Cluster (cluster.go): its namespace, the other versions of its resource, and the
// variables of CEL. A Matcher (match.go) is a compiled MatchResources: rules, selectors and the match policy.
// Conditions (conditions.go) are match conditions in CEL, which are evaluated for a write that the Matcher lets
// through. reinvocation.go records the policies and webhooks that may be called a second time.
//
// The package calls no webhook and evaluates no policy. Rules and messages are kube-apiserver's.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
package match

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
)

// Matcher is a MatchResources with its selectors parsed.
type Matcher struct {
	*admissionv1.MatchResources
	namespaces, objects labels.Selector
	err                 error
}

// New parses the selectors. An error in them is reported when a request is matched, since another release may have
// stored them.
func New(m *admissionv1.MatchResources) Matcher {
	if m == nil {
		return Matcher{err: errors.New("policy contained no match constraints, a required field")}
	}
	parsed := Matcher{MatchResources: m}
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

// Matched is the resource and the kind in which a policy or a webhook sees a request.
type Matched struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
}

// Matches reports whether the policy or webhook applies to the request. Another version of its resource matches too,
// unless the match policy is Exact. An error in a selector counts only if all else matches.
func (m *Matcher) Matches(ctx context.Context, q *Request) (Matched, bool, error) {
	if m.err != nil {
		return Matched{}, false, m.err
	}
	if !m.matchesObject(q.Attributes) {
		return Matched{}, false, nil
	}
	if _, excluded := m.matchesRules(q, m.ExcludeResourceRules); excluded {
		return Matched{}, false, nil
	}
	in, ok := Matched{q.Resource, q.Kind}, true
	if len(m.ResourceRules) > 0 {
		in, ok = m.matchesRules(q, m.ResourceRules)
	}
	if !ok {
		return Matched{}, false, nil
	}
	// The namespace is read last: most policies do not match anyway.
	ok, err := m.matchesNamespace(ctx, q)
	return in, ok && err == nil, err
}

func (m *Matcher) matchesObject(a *Attributes) bool {
	if m.objects.Empty() {
		return true
	}
	return a.Object != nil && m.objects.Matches(labels.Set(a.Object.GetLabels())) ||
		a.Old != nil && m.objects.Matches(labels.Set(a.Old.GetLabels()))
}

func (m *Matcher) matchesNamespace(ctx context.Context, q *Request) (bool, error) {
	if m.namespaces.Empty() {
		return true, nil
	}
	if q.GroupResource() == Namespaces {
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

func (m *Matcher) matchesRules(q *Request, rules []admissionv1.NamedRuleWithOperations) (Matched, bool) {
	possible := false // in another version
	for i := range rules {
		if !Fits(&rules[i], q.Attributes) {
			continue
		}
		if possible = true; isAbout(&rules[i], q.Resource) {
			return Matched{q.Resource, q.Kind}, true
		}
	}
	if !possible || m.MatchPolicy == nil || *m.MatchPolicy == admissionv1.Exact {
		return Matched{}, false
	}
	for i := range rules { // earlier rules first, independently of the order of versions
		if !Fits(&rules[i], q.Attributes) {
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
			return Matched{other, kind}, true
		}
	}
	return Matched{}, false
}

// Fits reports whether a rule would match the request in some version of its resource.
func Fits(r *admissionv1.NamedRuleWithOperations, a *Attributes) bool {
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
	namespaced := a.Namespace != "" && a.GroupResource() != Namespaces
	return namespaced == (*scope == admissionv1.NamespacedScope)
}

// nameOf returns the name of the request's object.
func nameOf(a *Attributes) string {
	if a.Name == "" && a.Object != nil {
		return a.Object.GetName()
	}
	return a.Name
}

// Source identifies the object that a policy or a webhook was compiled from.
type Source struct {
	uid        types.UID
	generation int64
}

// SourceOf returns the source that an object is now.
func SourceOf(obj api.Object) Source { return Source{obj.GetUID(), obj.GetGeneration()} }

// Exempt reports whether policies do not apply to a resource: their own kinds, so that a bad policy can be removed,
// and reviews, which do not change objects.
func Exempt(resource schema.GroupResource) bool {
	switch resource.Group {
	case admissionv1.GroupName:
		return strings.HasSuffix(resource.Resource, "admissionpolicies") ||
			strings.HasSuffix(resource.Resource, "admissionpolicybindings")
	case "authentication.k8s.io", "authorization.k8s.io":
		return true
	}
	return false
}
