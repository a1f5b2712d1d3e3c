package apiextensions

import (
	"fmt"
	"slices"

	"github.com/coxswain-dev/coxswain/api/structural"
)

// maxWarnings limits the warnings of a response.
const maxWarnings = 50

// warnings names formats that no value is checked for, and sets of which apply and rules don't know the items. old is
// nil for a new definition; what it has already is not named again.
func warnings(crd, old *definition) []string {
	known := map[string]bool{}
	if old != nil {
		warningsOf(old, known)
	}
	found := warningsOf(crd, known)
	return found[:min(len(found), maxWarnings)]
}

// warningsOf returns the warnings that are not known, and notes them.
func warningsOf(crd *definition, known map[string]bool) []string {
	var formats, sets []string
	note := func(list *[]string, warning string) {
		if !known[warning] {
			known[warning] = true
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
