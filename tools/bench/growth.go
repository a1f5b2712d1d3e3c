package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/coxswain-dev/coxswain/tools/bench/load"
)

// growth measures how a server scales with the number of objects: reads, memory and, for a server that the benchmark
// has started, a restart with that many objects.
type growth struct {
	sizes []int
	runs  int
}

const growthFormat = "%-10s %10s %10s %10s %10s %10s %12s %10s %10s %12s\n"

// growthReads are the workloads that run at each size.
var growthReads = []string{"get", "list", "pages", "select"}

// measure fills a server to each size in turn, and prints a row for each.
func (g *growth) measure(ctx context.Context, w io.Writer, src source) (err error) {
	served, err := src.serve(ctx, load.Workload{})
	if err != nil {
		return fmt.Errorf("%s: %w", src.name(), err)
	}
	defer func() { err = errors.Join(err, served.done()) }()
	fmt.Fprintf(w, "\n%s\n", "growth "+src.name())
	fmt.Fprintf(w, growthFormat, "objects", "create", "get", "list", "pages", "select 1 %", "memory", "start",
		"start CPU", "memory after")
	for _, size := range g.sizes {
		served.session.SetObjects(size)
		filled, err := load.Named("fill").Run(ctx, served.session)
		if err != nil {
			return err
		}
		row := []any{fmt.Sprint(size), short(filled.CPUPerOperation())}
		for _, name := range growthReads {
			r, err := g.median(ctx, served.session, name)
			if err != nil {
				return err
			}
			row = append(row, short(r.P50))
		}
		row = append(row, mebibytes(filled.Resident))
		var start load.Result
		if served.restart != nil {
			if start, err = served.restart(ctx); err != nil {
				return err
			}
		}
		fmt.Fprintf(w, growthFormat, append(row, short(start.P50), short(start.CPU), mebibytes(start.Resident))...)
	}
	return nil
}

func (g *growth) median(ctx context.Context, s *load.Session, name string) (load.Result, error) {
	var runs []load.Result
	for range g.runs {
		r, err := load.Named(name).Run(ctx, s)
		if err != nil {
			return r, err
		}
		runs = append(runs, r)
	}
	return load.Median(runs), nil
}
