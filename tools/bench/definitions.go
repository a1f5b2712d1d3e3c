package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/coxswain-dev/coxswain/tools/bench/load"
)

// definitions measures the cost of unused CustomResourceDefinitions: the time until they are established, memory,
// discovery and OpenAPI, and a restart of the server.
type definitions struct {
	count int
	runs  int
}

const definitionsFormat = "%-52s %12s\n"

// measure measures a server before and after it creates the definitions.
func (d *definitions) measure(ctx context.Context, w io.Writer, src source) (err error) {
	served, err := src.serve(ctx, load.Workload{})
	if err != nil {
		return fmt.Errorf("%s: %w", src.name(), err)
	}
	defer func() { err = errors.Join(err, served.done()) }()
	fmt.Fprintf(w, "\ndefinitions %s\n", src.name())
	startBefore, err := d.starts(ctx, served)
	if err != nil {
		return err
	}
	c, err := served.session.MeasureDefinitions(ctx, d.count)
	if err != nil {
		return err
	}
	startAfter, err := d.starts(ctx, served)
	if err != nil {
		return err
	}
	row := func(figure string, value any) { fmt.Fprintf(w, definitionsFormat, figure, fmt.Sprint(value)) }
	row("one definition, from the response until it is served", short(c.Alone))
	row(fmt.Sprintf("%d definitions of %d bytes, until all are served", d.count, c.Size), short(c.All))
	row("CPU of each", short(c.CPU/time.Duration(d.count)))
	row("heap of each", fmt.Sprintf("%.1f KiB", float64(c.Heap)/1024/float64(d.count)))
	row("goroutines of all", c.Goroutines)
	row("aggregated discovery", short(c.Discovery))
	row("index of /openapi/v3, the first time / again", short(c.IndexFirst)+" / "+short(c.Index))
	row("/openapi/v3 of one group, the first time / again", short(c.GroupFirst)+" / "+short(c.Group))
	row("heap that discovery and OpenAPI add", fmt.Sprintf("%+.1f MiB", float64(c.Documents)/(1<<20)))
	if served.restart != nil {
		row("start without / with them", short(startBefore.P50)+" / "+short(startAfter.P50))
		row("its CPU", short(startBefore.CPU)+" / "+short(startAfter.CPU))
	}
	return nil
}

// starts returns the median of several restarts with the current data. It is empty for a server that the benchmark did
// not start.
func (d *definitions) starts(ctx context.Context, s *served) (load.Result, error) {
	if s.restart == nil {
		return load.Result{}, nil
	}
	var starts []load.Result
	for range d.runs {
		r, err := s.restart(ctx)
		if err != nil {
			return r, err
		}
		starts = append(starts, r)
	}
	return load.Median(starts), nil
}
