package crd

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
)

// names are the names that are taken in a group, by its kinds.
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

// builtinNames returns the names of built-in kinds, by group.
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

// withoutBuiltin leaves out the registrations that a built-in kind of the same name hides.
func (c *Controller) withoutBuiltin(resources []*api.Resource) []*api.Resource {
	return slices.DeleteFunc(resources, func(r *api.Resource) bool {
		builtin := c.builtin[r.Group]
		return builtin != nil && (builtin.resources[r.Plural] || builtin.kinds[r.Kind])
	})
}

// reservation holds names that a write has accepted and memory does not have yet.
type reservation struct {
	uid   types.UID
	names apiextensionsv1.CustomResourceDefinitionNames
}

// usedNames returns the names that the kinds of a definition's group have, its own included. c.mu is held.
func (c *Controller) usedNames(of *customresource.Definition) *names {
	all := newNames()
	if builtin := c.builtin[of.Spec.Group]; builtin != nil {
		maps.Copy(all.resources, builtin.resources)
		maps.Copy(all.kinds, builtin.kinds)
	}
	for _, d := range c.definitions {
		if d.Spec.Group != of.Spec.Group {
			continue
		}
		n := &d.Status.AcceptedNames
		if r, found := c.reserved[d.Name]; found && r.uid == d.UID {
			n = &r.names
		}
		all.add(n.Plural, n.Singular, n.ShortNames, n.Kind, n.ListKind)
	}
	delete(all.resources, "")
	delete(all.kinds, "")
	return all
}

// acceptNames accepts the names that no other kind has.
func acceptNames(crd *apiextensionsv1.CustomResourceDefinition, used *names) {
	want, have := crd.Spec.Names, &crd.Status.AcceptedNames
	if equality.Semantic.DeepEqual(want, *have) && apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) {
		return
	}
	accepted := condition(apiextensionsv1.NamesAccepted, true, "NoConflicts", "no conflicts found")
	accept := func(reason, want string, have *string, used map[string]bool) {
		if want != *have && used[want] {
			accepted = condition(apiextensionsv1.NamesAccepted, false, reason,
				fmt.Sprintf("%q is already in use", want))
			return
		}
		*have = want
	}
	accept("PluralConflict", want.Plural, &have.Plural, used.resources)
	accept("SingularConflict", want.Singular, &have.Singular, used.resources)
	if conflicts := conflicting(want.ShortNames, have.ShortNames, used.resources); conflicts != "" {
		accepted = condition(apiextensionsv1.NamesAccepted, false, "ShortNamesConflict", conflicts)
	} else {
		have.ShortNames = want.ShortNames
	}
	accept("KindConflict", want.Kind, &have.Kind, used.kinds)
	accept("ListKindConflict", want.ListKind, &have.ListKind, used.kinds)
	have.Categories = want.Categories
	apihelpers.SetCRDCondition(crd, accepted)
}

// conflicting returns a message about the short names that another kind has, "" if none does.
func conflicting(want, have []string, used map[string]bool) string {
	if reflect.DeepEqual(want, have) {
		return ""
	}
	var conflicts []string
	for _, name := range want {
		if text := fmt.Sprintf("%q is already in use", name); !slices.Contains(have, name) && used[name] &&
			!slices.Contains(conflicts, text) {
			conflicts = append(conflicts, text)
		}
	}
	if len(conflicts) > 1 {
		return "[" + strings.Join(conflicts, ", ") + "]"
	}
	return strings.Join(conflicts, "")
}
