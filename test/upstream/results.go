package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// results has the results of a suite's run. It counts tests without their subtests, and Ginkgo's specs instead of the
// test that runs them.
type results struct {
	version              string
	run, failed, skipped int
	failures             map[string]string // output of failed tests, by name
}

func (r results) String() string {
	return fmt.Sprintf("%d run, %d failed, %d skipped", r.run, r.failed, r.skipped)
}

// event is a line of `go tool test2json`.
type event struct{ Action, Test, Output string }

// wholePackage is the name of a failure outside tests: in TestMain, or a panic between two tests.
const wholePackage = "(package)"

// readEvents reads the events of a test binary. It skips tests that run specs, since addSpecs adds their specs.
func readEvents(input io.Reader) (results, error) {
	r := results{failures: map[string]string{}}
	outcome, output, specs := map[string]string{}, map[string]*bytes.Buffer{}, map[string]bool{}
	decoder := json.NewDecoder(input)
	for {
		var e event
		if err := decoder.Decode(&e); err == io.EOF {
			break
		} else if err != nil {
			return r, fmt.Errorf("read events of tests: %w", err)
		}
		switch e.Action {
		case "output":
			if output[e.Test] == nil {
				output[e.Test] = &bytes.Buffer{}
			}
			output[e.Test].WriteString(e.Output)
			if strings.HasPrefix(e.Output, "Ran ") && strings.Contains(e.Output, " Specs in ") {
				specs[e.Test] = true
			}
		case "pass", "fail", "skip":
			outcome[e.Test] = e.Action
		}
	}
	failedPart := map[string]bool{} // tests with a failed subtest
	for test, action := range outcome {
		for i, c := range test { // the name of a subtest may itself have slashes
			if c == '/' && action == "fail" {
				failedPart[test[:i]] = true
			}
		}
	}
	for test, action := range outcome {
		if test == "" || specs[test] {
			continue
		}
		r.count(action, strings.Contains(test, "/"))
		if action == "fail" && !failedPart[test] {
			r.failures[test] = text(output[test])
		}
	}
	if outcome[""] == "fail" && len(r.failures) == 0 && len(specs) == 0 {
		r.failures[wholePackage] = text(output[""])
	}
	return r, nil
}

func (r *results) count(action string, part bool) {
	switch {
	case part:
	case action == "skip":
		r.skipped++
	default:
		r.run++
		if action == "fail" {
			r.failed++
		}
	}
}

func text(b *bytes.Buffer) string {
	if b == nil {
		return ""
	}
	return b.String()
}

// spec is a part of Ginkgo's report in JSON.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	Failure                 struct {
		Message  string
		Location struct {
			FileName   string
			LineNumber int
		}
	}
}

// addSpecs adds the specs of a report, and failures of nodes that are not specs.
func (r *results) addSpecs(report []byte) error {
	var suites []struct{ SpecReports []spec }
	if err := json.Unmarshal(report, &suites); err != nil {
		return fmt.Errorf("read Ginkgo's report: %w", err)
	}
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			s.add(r)
		}
	}
	return nil
}

func (s spec) add(r *results) {
	switch s.State {
	case "passed":
		r.count("pass", s.LeafNodeType != "It")
	case "skipped", "pending":
		r.count("skip", s.LeafNodeType != "It")
	default: // failed, panicked, timedout, interrupted, aborted
		r.count("fail", s.LeafNodeType != "It")
		name := strings.TrimSpace(strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " "))
		if s.LeafNodeType != "It" {
			name = strings.TrimSpace(s.LeafNodeType + " " + name)
		}
		r.failures[name] += fmt.Sprintf("%s:%d: %s\n", s.Failure.Location.FileName, s.Failure.Location.LineNumber,
			s.Failure.Message)
	}
}
