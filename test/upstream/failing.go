package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// known has the entries of a failing.txt for a suite.
type known struct {
	failing []string // names of tests
	skipped []string // names of tests that do not run, because they would end the process
}

// parseFailing parses a failing.txt. Each line is a test:
//
//	class | suite | name | reason
//
// The class is "ours" for a gap in Coxswain, "theirs" for an assumption of the test that Coxswain does not guarantee,
// and "skip" for a test that panics when it fails, so that no test would run after it.
func parseFailing(text string) (map[string]known, error) {
	suites := map[string]known{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, " | ")
		if len(fields) != 4 || !slices.Contains([]string{"ours", "theirs", "skip"}, fields[0]) ||
			slices.Contains(fields, "") {
			return nil, fmt.Errorf("failing.txt, line %d: want ours, theirs or skip, suite, name and reason, "+
				"with | between them", i+1)
		}
		k := suites[fields[1]]
		if fields[0] == "skip" {
			k.skipped = append(k.skipped, fields[2])
		} else {
			k.failing = append(k.failing, fields[2])
		}
		suites[fields[1]] = k
	}
	return suites, nil
}

// unknown returns the names of the tests that failed and are not in the list.
func (r results) unknown(list []string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(r.failures)) {
		if !slices.Contains(list, name) {
			names = append(names, name)
		}
	}
	return names
}

// absent returns the names in the list of tests that did not fail.
func (r results) absent(list []string) (names []string) {
	for _, name := range list {
		if _, failed := r.failures[name]; !failed {
			names = append(names, name)
		}
	}
	return names
}
