// Package load puts work on a Kubernetes API server and tells what it cost.
//
// A Target is a server: where it is, how to speak to it, and, when they run on this
// machine, the processes whose CPU and memory are its cost. A Workload is one kind of work;
// Workloads is the table of them. A Session keeps what workloads on the same target share,
// the namespace and the pods in it, and takes it away in the end.
//
// Requests are written and read on plain TLS connections (conn.go), one connection and one
// goroutine to a client, because client-go would spend more CPU on asking than a good server
// spends on answering, and on a small machine both share the cores. What clients of that
// kind cost is measured by the workloads that use client-go itself: informer, deployment and its like.
//
// The package knows nothing of Coxswain; it works against any server that speaks the API.
package load

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Options say how much work there is. All fields must be set; DefaultOptions does.
type Options struct {
	Clients  int           // that send requests at the same time
	Objects  int           // pods of 2 kB that there are for reads and patches
	Duration time.Duration // how long a workload without an end of its own goes on
	Watchers int           // of workloads watch and soak
	Wide     int           // of those in soak, how many watch all the pods
	Rate     int           // changes a second in workloads watch and soak
	Replicas int           // of workloads deployment and rollout
}

// DefaultOptions are those of the published figures.
func DefaultOptions() Options {
	return Options{Clients: 16, Objects: 10000, Duration: 5 * time.Second, Watchers: 200, Wide: 10, Rate: 100,
		Replicas: 1000}
}

// MaxObjects is the most pods that a session makes to be read.
const MaxObjects = 200_000

// Check refuses options that would take the machine rather than measure the server.
func (o Options) Check() error {
	for _, v := range []struct {
		name      string
		value     int
		min, most int
	}{
		{"clients", o.Clients, 1, 1000},
		{"objects", o.Objects, 1, MaxObjects},
		{"watchers", o.Watchers, 1, 10_000},
		{"wide", o.Wide, 0, 10_000},
		{"rate", o.Rate, 1, 100_000},
		{"replicas", o.Replicas, 1, 100_000},
	} {
		if v.value < v.min || v.value > v.most {
			return fmt.Errorf("-%s: must be between %d and %d", v.name, v.min, v.most)
		}
	}
	if o.Duration < 100*time.Millisecond || o.Duration > 10*time.Minute {
		return fmt.Errorf("-duration: must be between 100ms and 10m")
	}
	return nil
}

// Result is what one run of a workload came to.
type Result struct {
	Workload string
	Unit     string // what an operation is: "request", "event", …
	// Operations that ended well within Elapsed. A run with a failed one has no Result.
	Operations int
	Elapsed    time.Duration
	P50, P99   time.Duration // of one operation, as a client sees it; 0 where there is no such thing
	// CPU that the server's processes used meanwhile, and what they hold in memory at the
	// end, in bytes. Both are 0 when the Target does not know its processes.
	CPU      time.Duration
	Resident int64
	// Notes are what the figures do not tell, a line each.
	Notes []string
}

// Rate is operations a second.
func (r Result) Rate() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Operations) / r.Elapsed.Seconds()
}

// CPUPerOperation is the server's.
func (r Result) CPUPerOperation() time.Duration {
	if r.Operations == 0 {
		return 0
	}
	return r.CPU / time.Duration(r.Operations)
}

// Median is, figure by figure, the median of several runs of one workload.
func Median(runs []Result) Result {
	m := runs[0]
	m.Operations = middle(runs, func(r Result) int { return r.Operations })
	m.P50 = middle(runs, func(r Result) time.Duration { return r.P50 })
	m.P99 = middle(runs, func(r Result) time.Duration { return r.P99 })
	m.Resident = middle(runs, func(r Result) int64 { return r.Resident })
	// Rate and CPU per operation are the medians of themselves, not of their parts.
	rate := middle(runs, Result.Rate)
	m.Elapsed = time.Duration(float64(m.Operations) / rate * float64(time.Second))
	m.CPU = middle(runs, Result.CPUPerOperation) * time.Duration(m.Operations)
	return m
}

func middle[T int | int64 | float64 | time.Duration](runs []Result, of func(Result) T) T {
	values := make([]T, len(runs))
	for i, r := range runs {
		values[i] = of(r)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// Workload is one kind of work.
type Workload struct {
	Name  string
	About string // for the command's usage
	Unit  string
	// NeedsControllers: the API server alone does not get it done.
	NeedsControllers bool
	// Once: a second run on the same target has nothing left to do, or nothing to add.
	Once bool
	// Long: it is run only when it is asked for by name.
	Long bool
	run  func(ctx context.Context, s *Session) (Result, error)
}

// Workloads are all that there are, in the order in which they are run.
var Workloads = []Workload{
	{Name: "idle", Unit: "second", About: "nothing: what the server uses while nobody asks", run: idle},
	{Name: "create", Unit: "request", About: "create pods of 2 kB", run: create},
	{Name: "fill", Unit: "request", About: "memory: create -objects pods, once", Once: true, run: fill},
	{Name: "rest", Unit: "second", About: "memory: hold -objects pods while nobody asks; what a load leaves " +
		"behind is given back after 15 s", run: hold},
	{Name: "get", Unit: "request", About: "read one pod, consistently", run: get},
	{Name: "list", Unit: "list", About: "one client lists all the pods, consistently", run: list},
	{Name: "pages", Unit: "list", About: "one client lists all the pods in pages of 500", run: pages},
	{Name: "select", Unit: "list", About: "one client lists the 1 % of pods that a label selects", run: selected},
	{Name: "patch", Unit: "request", About: "merge patch of one pod's labels", run: patchMerge},
	{Name: "strategic", Unit: "request", About: "strategic merge patch of one pod's labels", run: patchStrategic},
	{Name: "update", Unit: "request", About: "update one pod's labels", run: update},
	{Name: "watch", Unit: "event", About: "-watchers watch -rate changes a second; CPU of the changes included",
		run: watch},
	{Name: "informer", Unit: "start", About: "a client-go informer starts and fills its cache with all the pods",
		run: informer},
	{Name: "mixed", Unit: "request", About: "70 % get, 10 % lists of 100, 10 % patch, 5 % create, 5 % delete",
		run: mixed},
	{Name: "deployment", Unit: "deployment", About: "a Deployment of -replicas becomes Ready", NeedsControllers: true,
		run: deployment},
	{Name: "rollout", Unit: "rollout", About: "a rolling update of a Deployment of -replicas", NeedsControllers: true,
		run: rollout},
	{Name: "deployments", Unit: "burst", About: "100 Deployments of 20 become Ready at once", NeedsControllers: true,
		run: deployments},
	{Name: "custom-get", Unit: "request", About: "get of custom resources of 2 kB, beside ConfigMaps", Once: true,
		Long: true, run: customGet},
	{Name: "custom-list", Unit: "list", About: "list of all custom resources, beside ConfigMaps", Once: true,
		Long: true, run: customList},
	{Name: "custom-watch", Unit: "event", About: "like watch, of custom resources, beside ConfigMaps", Once: true,
		Long: true, run: customWatch},
	{Name: "custom-patch", Unit: "request", About: "patch of custom resources, beside ConfigMaps", Once: true,
		Long: true, run: customPatch},
	{Name: "custom-create", Unit: "request", About: "create custom resources with ten rules, beside pods", Once: true,
		Long: true, run: customCreate},
	{Name: "cluster", Unit: "cluster", About: "-objects pods in Deployments of 1,000, on -nodes, become Ready",
		NeedsControllers: true, Once: true, Long: true, run: cluster},
	{Name: "soak", Unit: "event",
		About: "like watch, but most of the -watchers watch one node's pods; memory over time", Once: true,
		Long: true, run: soak},
}

// Named is the workload of a name, nil if there is none.
func Named(name string) *Workload {
	for i := range Workloads {
		if Workloads[i].Name == name {
			return &Workloads[i]
		}
	}
	return nil
}

// Run runs a workload once. Preparing it is not part of the Result.
func (w Workload) Run(ctx context.Context, s *Session) (Result, error) {
	r, err := w.run(ctx, s)
	if err != nil {
		return r, fmt.Errorf("%s: %w", w.Name, err)
	}
	r.Workload, r.Unit = w.Name, w.Unit
	return r, nil
}
