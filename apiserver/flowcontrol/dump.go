package flowcontrol

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// The dumps are tables with a comma after each cell, as in
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#debug-endpoints.

// DumpLevels writes a line for each priority level.
func (d *Dispatcher) DumpLevels(w io.Writer) error {
	t := newTable(w, "PriorityLevelName", "ActiveQueues", "IsIdle", "IsQuiescing", "WaitingRequests",
		"ExecutingRequests",
		"DispatchedRequests", "RejectedRequests", "TimedoutRequests", "CancelledRequests")
	d.each(func(l *level) {
		t.row(l.name, len(l.backlog), l.executing.n == 0 && l.waiting == 0, l.quiescing, l.waiting, l.executing.n,
			l.counts.dispatched, l.counts.rejected, l.counts.timedOut, l.counts.cancelled)
	})
	return t.flush()
}

// DumpQueues writes a line for each queue.
func (d *Dispatcher) DumpQueues(w io.Writer) error {
	t := newTable(w, "PriorityLevelName", "Index", "PendingRequests", "ExecutingRequests", "SeatsInUse",
		"NextDispatchR",
		"InitialSeatsSum", "MaxSeatsSum", "TotalWorkSum")
	d.each(func(l *level) {
		if l.queuing == nil {
			t.row(append([]any{l.name}, none[:8]...)...)
		}
		for i, q := range l.queues {
			if q == nil {
				q = &queue{}
			}
			t.row(l.name, i, q.waiting.n, q.executing, q.inUse, seatSeconds(max(q.tag, l.virtual)), q.seats, q.seats,
				seatSeconds(guess*float64(q.seats)))
		}
	})
	return t.flush()
}

// DumpRequests writes a line for each request that waits or, with an index of -1, is served. Details
// add the request and its user.
func (d *Dispatcher) DumpRequests(w io.Writer, details bool) error {
	columns := []string{"PriorityLevelName", "FlowSchemaName", "QueueIndex", "RequestIndexInQueue",
		"FlowDistingsher", "ArriveTime",
		"InitialSeats", "FinalSeats", "AdditionalLatency", "StartTime"}
	if details {
		columns = append(columns, "UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource",
			"SubResource")
	}
	t := newTable(w, columns...)
	d.each(func(l *level) {
		line := func(r *Request, queue, index int, began string) {
			cells := []any{l.name, r.schema.name, queue, index, r.flow, d.at(r.arrived), r.width, 0, "0s", began}
			if details {
				cells = append(cells, r.User, r.Verb, r.Path, r.Namespace, r.Name,
					apiVersion(r), r.Resource, r.Subresource)
			}
			t.row(cells...)
		}
		for r := l.executing.first; r != nil; r = r.next {
			line(r, -1, -1, d.at(r.began))
		}
		byIndex := slices.Clone(l.backlog)
		slices.SortFunc(byIndex, func(a, b *queue) int { return a.index - b.index })
		for _, q := range byIndex {
			for i, r := 0, q.waiting.first; r != nil; i, r = i+1, r.next {
				line(r, q.index, i, "-")
			}
		}
	})
	return t.flush()
}

// each calls f for every level, by name, with its lock held.
func (d *Dispatcher) each(f func(*level)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(d.levels)) {
		l := d.levels[name]
		l.mu.Lock()
		f(l)
		l.mu.Unlock()
	}
}

func (d *Dispatcher) at(since time.Duration) string {
	return d.began.Add(since).UTC().Format(time.RFC3339Nano)
}

func apiVersion(r *Request) string {
	if r.Group == "" {
		return r.Version
	}
	return r.Group + "/" + r.Version
}

func seatSeconds(n float64) string { return strconv.FormatFloat(n, 'f', 8, 64) + "ss" }

var none = slices.Repeat([]any{"<none>"}, 8)

type table struct{ out *tabwriter.Writer }

func newTable(w io.Writer, columns ...string) table {
	t := table{tabwriter.NewWriter(w, 8, 0, 1, ' ', 0)}
	cells := make([]any, len(columns))
	for i, c := range columns {
		cells[i] = c
	}
	t.row(cells...)
	return t
}

func (t table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = plain.Replace(fmt.Sprint(c))
	}
	fmt.Fprintln(t.out, strings.Join(texts, ",\t")) // Flush returns errors
}

// plain keeps user names, which may contain anything, on one line.
var plain = strings.NewReplacer("\n", " ", "\t", " ", "\v", " ", "\f", " ")

func (t table) flush() error { return t.out.Flush() }
