package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/coxswain-dev/coxswain/tools/bench/load"
)

// table prints results while the benchmark runs: a line for each workload and server and, for two servers, a line with
// the ratios.
type table struct {
	w       io.Writer
	sources []source
}

const rowFormat = "%-20s %12s %12s %10s %10s %12s %10s\n"

func newTable(w io.Writer, sources []source) *table {
	fmt.Fprintf(w, rowFormat, "workload", "rate/s", "operation", "p50", "p99", "CPU each", "memory")
	return &table{w: w, sources: sources}
}

// row prints one result of each source.
func (t *table) row(results []load.Result) {
	for i, r := range results {
		name := r.Workload
		if s := t.sources[i].name(); s != "" {
			name += " " + s
		}
		fmt.Fprintf(t.w, rowFormat, name, rate(r.Rate()), r.Unit, short(r.P50), short(r.P99),
			short(r.CPUPerOperation()), mebibytes(r.Resident))
		for _, note := range r.Notes {
			fmt.Fprintf(t.w, "  %s\n", note)
		}
	}
	if len(results) == 2 {
		a, b := results[0], results[1]
		fmt.Fprintf(t.w, rowFormat, strings.Repeat(" ", 2)+"first is better by", ratio(a.Rate(), b.Rate()), "",
			ratio(b.P50, a.P50), ratio(b.P99, a.P99), ratio(b.CPUPerOperation(), a.CPUPerOperation()),
			ratio(b.Resident, a.Resident))
	}
}

func rate(r float64) string {
	if r >= 100 {
		return fmt.Sprintf("%.0f", r)
	}
	return fmt.Sprintf("%.3g", r)
}

// short formats a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%.3g µs", float64(d)/float64(time.Microsecond))
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.3g s", d.Seconds())
}

func mebibytes(n int64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

func ratio[T int64 | float64 | time.Duration](a, b T) string {
	if a == 0 || b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f×", float64(a)/float64(b))
}
