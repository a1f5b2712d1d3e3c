package definitions

import (
	"crypto/x509"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
)

// names are those that kinds of a group have.
type names struct{ resources, kinds map[string]bool }

func newNames() *names { return &names{resources: map[string]bool{}, kinds: map[string]bool{}} }

func (n *names) add(plural, singular string, short []string, kinds ...string) {
	for _, name := range append([]string{plural, singular}, short...) {
		n.resources[name] = true
	}
	for _, name := range kinds {
		n.kinds[name] = true
	}
}

// builtinNames are the names of built-in kinds, by group.
func builtinNames(kinds *api.Snapshot) map[string]*names {
	groups := map[string]*names{}
	for _, r := range kinds.Resources {
		if groups[r.Group] == nil {
			groups[r.Group] = newNames()
		}
		groups[r.Group].add(r.Plural, r.Singular, r.ShortNames, r.Kind, r.ListGVK().Kind)
	}
	return groups
}

// besideBuiltin leaves out the registrations that a built-in kind of the same name hides.
func (d *Definitions) besideBuiltin(resources []*api.Resource) []*api.Resource {
	return slices.DeleteFunc(resources, func(r *api.Resource) bool {
		taken := d.builtin[r.Group]
		return taken != nil && (taken.resources[r.Plural] || taken.kinds[r.Kind])
	})
}

// claim are names that were accepted by a write which memory does not have yet.
type claim struct {
	uid   types.UID
	names apiextensionsv1.CustomResourceDefinitionNames
}

// taken are the names that the other kinds of a definition's group have. d.mu is held.
func (d *Definitions) taken(of *customresource.Definition) *names {
	all := newNames()
	if builtin := d.builtin[of.Spec.Group]; builtin != nil {
		maps.Copy(all.resources, builtin.resources)
		maps.Copy(all.kinds, builtin.kinds)
	}
	for _, e := range d.known {
		if e.Spec.Group != of.Spec.Group {
			continue
		}
		n := &e.Status.AcceptedNames
		if c, found := d.claims[e.Name]; found && c.uid == e.UID {
			n = &c.names
		}
		all.add(n.Plural, n.Singular, n.ShortNames, n.Kind, n.ListKind)
	}
	delete(all.resources, "")
	delete(all.kinds, "")
	return all
}

// settle sets the names and the conditions of a definition, whose group has taken names.
func settle(crd *apiextensionsv1.CustomResourceDefinition, taken *names) {
	settleNames(crd, taken)
	establish(crd)
	if crd.Spec.PreserveUnknownFields {
		apihelpers.SetCRDCondition(crd, condition(apiextensionsv1.NonStructuralSchema, true, "Violations",
			"spec.preserveUnknownFields: Invalid value: true: must be false"))
	} else {
		apihelpers.RemoveCRDCondition(crd, apiextensionsv1.NonStructuralSchema)
	}
	if !approvalHolds(crd) {
		apihelpers.SetCRDCondition(crd, *approval(crd))
	}
}

// approvalHolds reports whether the condition about the approval is as it should be.
func approvalHolds(crd *apiextensionsv1.CustomResourceDefinition) bool {
	should := approval(crd)
	return should == nil || apihelpers.IsCRDConditionEquivalent(should, apihelpers.FindCRDCondition(crd, should.Type))
}

// settleNames accepts the names that no other kind has.
func settleNames(crd *apiextensionsv1.CustomResourceDefinition, taken *names) {
	want, have := crd.Spec.Names, &crd.Status.AcceptedNames
	if equality.Semantic.DeepEqual(want, *have) && apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) {
		return
	}
	accepted := condition(apiextensionsv1.NamesAccepted, true, "NoConflicts", "no conflicts found")
	accept := func(reason, want string, have *string, taken map[string]bool) {
		if want != *have && taken[want] {
			accepted = condition(apiextensionsv1.NamesAccepted, false, reason,
				fmt.Sprintf("%q is already in use", want))
			return
		}
		*have = want
	}
	accept("PluralConflict", want.Plural, &have.Plural, taken.resources)
	accept("SingularConflict", want.Singular, &have.Singular, taken.resources)
	if conflicts := conflicting(want.ShortNames, have.ShortNames, taken.resources); conflicts != "" {
		accepted = condition(apiextensionsv1.NamesAccepted, false, "ShortNamesConflict", conflicts)
	} else {
		have.ShortNames = want.ShortNames
	}
	accept("KindConflict", want.Kind, &have.Kind, taken.kinds)
	accept("ListKindConflict", want.ListKind, &have.ListKind, taken.kinds)
	have.Categories = want.Categories
	apihelpers.SetCRDCondition(crd, accepted)
}

// establish decides, once and for all, whether the kind is served.
func establish(crd *apiextensionsv1.CustomResourceDefinition) {
	established := condition(apiextensionsv1.Established, true, "InitialNamesAccepted",
		"the initial names have been accepted")
	switch {
	case apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established):
		return
	case !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted):
		established = condition(apiextensionsv1.Established, false, "NotAccepted", "not all names are accepted")
	case !isCABundleValid(crd.Spec.Conversion):
		established = condition(apiextensionsv1.Established, false, "InvalidCABundle",
			"The conversion webhook CABundle is invalid")
	}
	apihelpers.SetCRDCondition(crd, established)
}

// isCABundleValid reports whether the conversion webhook, if there is one, has certificate authorities to go by.
func isCABundleValid(c *apiextensionsv1.CustomResourceConversion) bool {
	if c == nil || c.Webhook == nil || c.Webhook.ClientConfig == nil {
		return true
	}
	bundle := c.Webhook.ClientConfig.CABundle
	return len(bundle) == 0 || x509.NewCertPool().AppendCertsFromPEM(bundle)
}

// conflicting says which of the short names another kind has, "" if none.
func conflicting(want, have []string, taken map[string]bool) string {
	if reflect.DeepEqual(want, have) {
		return ""
	}
	var conflicts []string
	for _, name := range want {
		if text := fmt.Sprintf("%q is already in use", name); !slices.Contains(have, name) && taken[name] &&
			!slices.Contains(conflicts, text) {
			conflicts = append(conflicts, text)
		}
	}
	if len(conflicts) > 1 {
		return "[" + strings.Join(conflicts, ", ") + "]"
	}
	return strings.Join(conflicts, "")
}

// stamp gives the conditions whose status has changed the time of the change. apihelpers gives them the machine's.
func stamp(crd *apiextensionsv1.CustomResourceDefinition,
	was []apiextensionsv1.CustomResourceDefinitionCondition, now time.Time) {
	for i := range crd.Status.Conditions {
		c := &crd.Status.Conditions[i]
		same := func(old apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return old.Type == c.Type && old.Status == c.Status
		}
		if !slices.ContainsFunc(was, same) {
			c.LastTransitionTime = metav1.NewTime(now)
		}
	}
}

func condition(kind apiextensionsv1.CustomResourceDefinitionConditionType, holds bool,
	reason, message string) apiextensionsv1.CustomResourceDefinitionCondition {
	status := apiextensionsv1.ConditionFalse
	if holds {
		status = apiextensionsv1.ConditionTrue
	}
	return apiextensionsv1.CustomResourceDefinitionCondition{Type: kind, Status: status, Reason: reason,
		Message: message}
}

// approval is the condition of a definition in a group of Kubernetes' own; nil for other groups. Validation decides
// whether such a definition may be there. https://github.com/kubernetes/enhancements/pull/1111
func approval(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinitionCondition {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return nil
	}
	const kind = apiextensionsv1.KubernetesAPIApprovalPolicyConformant
	state, message := apihelpers.GetAPIApprovalState(crd.Annotations)
	var c apiextensionsv1.CustomResourceDefinitionCondition
	switch state {
	case apihelpers.APIApproved:
		c = condition(kind, true, "ApprovedAnnotation", message)
	case apihelpers.APIApprovalBypassed:
		c = condition(kind, false, "UnapprovedAnnotation", message)
	case apihelpers.APIApprovalMissing:
		c = condition(kind, false, "MissingAnnotation", message)
	default:
		c = condition(kind, false, "InvalidAnnotation", message)
	}
	return &c
}
