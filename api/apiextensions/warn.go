package apiextensions

import (
	"fmt"
	"slices"

	"github.com/coxswain-dev/coxswain/api/structural"
)

// maxWarnings limits the warnings of a response.
const maxWarnings = 50

// warnings returns warnings about formats that are never checked, and about sets whose items are unknown to
// server-side apply and rules. old is nil for a new definition. A warning that also applies to old is omitted.
func warnings(crd, old *definition) []string {
	seen := map[string]bool{}
	if old != nil {
		warningsOf(old, seen)
	}
	found := warningsOf(crd, seen)
	return found[:min(len(found), maxWarnings)]
}

// warningsOf returns the warnings that are not in seen, and adds them to it.
func warningsOf(crd *definition, seen map[string]bool) []string {
	var formats, sets []string
	note := func(list *[]string, warning string) {
		if !seen[warning] {
			seen[warning] = true
			*list = append(*list, warning)
		}
	}
	converted, err := convert(crd)
	if err != nil {
		return nil
	}
	for _, root := range rootsOf(schemasOf(converted, crd)) {
		root.each(func(s *node) {
			if s.Format != "" && !structural.SupportsFormat(s.Type, s.Format) {
				note(&formats, fmt.Sprintf("unrecognized format %q", s.Format))
			}
			if s.XListType != nil && *s.XListType == listSet && s.items != nil &&
				(s.items.Type == "object" || s.items.Type == "array") {
				note(&sets, fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by "+
					"server-side apply or CEL validation rules", s.items.Type))
			}
		})
	}
	slices.Sort(sets)
	return append(formats, sets...)
}
