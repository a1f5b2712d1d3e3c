package framework

import (
	"fmt"
	"slices"
	"strings"
)

// Code is the outcome of a step.
type Code int

const (
	// Success: the step accepts the pod or node. A nil *Status means the same.
	Success Code = iota
	// Error: something unrelated to the pod failed; the pod is retried after a back-off.
	Error
	// Unschedulable: not now, but preempting other pods might help.
	Unschedulable
	// UnschedulableAndUnresolvable: not now, and preempting other pods would not help.
	UnschedulableAndUnresolvable
	// Skip: the plugin does not apply to this pod.
	Skip
)

// String returns the name of the code in metrics.
func (c Code) String() string {
	switch c {
	case Success:
		return "Success"
	case Error:
		return "Error"
	case Unschedulable:
		return "Unschedulable"
	case UnschedulableAndUnresolvable:
		return "UnschedulableAndUnresolvable"
	case Skip:
		return "Skip"
	}
	return "Unknown"
}

// Status is the outcome of a step, with the reasons that a user will read. It is immutable. Plugins keep statuses
// with constant reasons in variables, so that a rejection of a node does not allocate.
type Status struct {
	code    Code
	reasons []string
	err     error
	plugin  string
}

// NewStatus returns a status. Messages prefix reasons with a number of nodes ("2 node(s) were unschedulable"), so
// the reasons must read well after a number.
func NewStatus(plugin string, code Code, reasons ...string) *Status {
	return &Status{code: code, reasons: reasons, plugin: plugin}
}

// AsError wraps err as a status with code Error.
func AsError(plugin string, err error) *Status {
	return &Status{code: Error, reasons: []string{err.Error()}, err: err, plugin: plugin}
}

// Code returns the outcome; Success for nil.
func (s *Status) Code() Code {
	if s == nil {
		return Success
	}
	return s.code
}

// OK reports whether the code is Success.
func (s *Status) OK() bool { return s.Code() == Success }

// Skipped reports whether the code is Skip.
func (s *Status) Skipped() bool { return s.Code() == Skip }

// Rejected reports whether the pod or node was rejected, as opposed to an error.
func (s *Status) Rejected() bool {
	return s.Code() == Unschedulable || s.Code() == UnschedulableAndUnresolvable
}

// Reasons returns the reasons unchanged.
func (s *Status) Reasons() []string {
	if s == nil {
		return nil
	}
	return s.reasons
}

// Plugin returns the name of the plugin that made the status.
func (s *Status) Plugin() string {
	if s == nil {
		return ""
	}
	return s.plugin
}

// Err returns the status as an error; nil for Success and Skip.
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

// Diagnosis explains why no node was found for a pod.
type Diagnosis struct {
	// NodeStatuses maps the names of the nodes that were filtered out to their statuses.
	NodeStatuses map[string]*Status
	// Absent, if not nil, is the status of every node that is not in NodeStatuses: of all nodes if a PreFilter
	// rejected the pod, or of the nodes that a PreFilterResult excluded.
	Absent *Status
	// PreFilterMessage is the message of a PreFilter that rejected the pod for all nodes at once.
	PreFilterMessage string
	// PostFilterMessage contains the messages of the PostFilter plugins.
	PostFilterMessage string
	// Total is the number of nodes in the cluster.
	Total int
	// Plugins are the names of the plugins that rejected the pod or a node.
	Plugins map[string]struct{}
}

// Of returns the status of a node.
func (d *Diagnosis) Of(node string) *Status {
	if status := d.NodeStatuses[node]; status != nil {
		return status
	}
	return d.Absent
}

// Message formats the diagnosis as Kubernetes does:
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
