package framework

import (
	"fmt"
	"slices"
	"strings"
)

// Code is the outcome of a step.
type Code int

const (
	// Success: the step has nothing against it. A nil *Status means the same.
	Success Code = iota
	// Error: something broke that is not about the pod; it is tried again after a back-off.
	Error
	// Unschedulable: not now, but preempting other pods might help.
	Unschedulable
	// UnschedulableAndUnresolvable: not now, and preempting other pods would not help.
	UnschedulableAndUnresolvable
	// Skip: the plugin has nothing to say about this pod.
	Skip
)

// Status is the outcome of a step with the reasons that a user will read. It is immutable; plugins
// keep those whose reasons are constant in variables, so that refusing a node allocates nothing.
type Status struct {
	code    Code
	reasons []string
	err     error
	plugin  string
}

// NewStatus makes a status. The reasons count nodes in messages ("2 node(s) were unschedulable"),
// so they begin where a number can stand before them.
func NewStatus(plugin string, code Code, reasons ...string) *Status {
	return &Status{code: code, reasons: reasons, plugin: plugin}
}

// AsError wraps err as a status with code Error.
func AsError(plugin string, err error) *Status {
	return &Status{code: Error, reasons: []string{err.Error()}, err: err, plugin: plugin}
}

// Code is the outcome; Success for nil.
func (s *Status) Code() Code {
	if s == nil {
		return Success
	}
	return s.code
}

// OK reports Success.
func (s *Status) OK() bool { return s.Code() == Success }

// Skipped reports Skip.
func (s *Status) Skipped() bool { return s.Code() == Skip }

// Rejected reports that the pod or node was refused, as opposed to an error.
func (s *Status) Rejected() bool {
	return s.Code() == Unschedulable || s.Code() == UnschedulableAndUnresolvable
}

// Reasons are the reasons as given.
func (s *Status) Reasons() []string {
	if s == nil {
		return nil
	}
	return s.reasons
}

// Plugin is the name of the plugin that gave the status.
func (s *Status) Plugin() string {
	if s == nil {
		return ""
	}
	return s.plugin
}

// Err is the status as an error; nil for Success and Skip.
func (s *Status) Err() error {
	switch {
	case s.OK() || s.Skipped():
		return nil
	case s.err != nil:
		return fmt.Errorf("%s: %w", s.plugin, s.err)
	default:
		return fmt.Errorf("%s: %s", s.plugin, strings.Join(s.reasons, ", "))
	}
}

// Diagnosis says why no node was found for a pod.
type Diagnosis struct {
	// NodeStatuses has, by node name, the refusal of each node that was filtered.
	NodeStatuses map[string]*Status
	// Absent, where not nil, is the refusal of every node that is not in NodeStatuses: all, where a
	// PreFilter refused the pod; those that a PreFilterResult left out.
	Absent *Status
	// PreFilterMessage is what a PreFilter said that refused the pod for all nodes at once.
	PreFilterMessage string
	// PostFilterMessage is what the PostFilter plugins said.
	PostFilterMessage string
	// Total is the number of nodes in the cluster.
	Total int
	// Plugins are the names of those that refused.
	Plugins map[string]struct{}
}

// Of is the refusal of a node.
func (d *Diagnosis) Of(node string) *Status {
	if status := d.NodeStatuses[node]; status != nil {
		return status
	}
	return d.Absent
}

// Message words the diagnosis as Kubernetes does:
//
//	0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s).
func (d *Diagnosis) Message() string {
	if d.Total == 0 {
		return "no nodes available to schedule pods"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "0/%d nodes are available", d.Total)
	counts := make(map[string]int)
	for _, status := range d.NodeStatuses {
		for _, reason := range status.Reasons() {
			counts[reason]++
		}
	}
	if n := d.Total - len(d.NodeStatuses); n > 0 {
		for _, reason := range d.Absent.Reasons() {
			counts[reason] += n
		}
	}
	var parts []string
	for reason, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	if d.PreFilterMessage != "" {
		parts = []string{d.PreFilterMessage}
	}
	slices.Sort(parts)
	if len(parts) > 0 {
		b.WriteString(": " + strings.Join(parts, ", ") + ".")
	}
	if d.PostFilterMessage != "" {
		b.WriteString(" " + d.PostFilterMessage)
	}
	return b.String()
}
