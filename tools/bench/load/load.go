// Package load generates load on a Kubernetes API server and measures its cost.
//
// A Target is a server: its address, the credentials and, if it runs on this machine, the processes whose CPU and
// memory count. A Workload is one kind of load, and Workloads is the table of them. A Session has the namespaces and
// pods that workloads on the same target share, and removes them at the end.
//
// Clients read and write plain TLS connections (conn.go), each with a connection and a goroutine of its own. client-go
// would use more CPU for a request than a good server does, and on a small machine both share the cores. The workloads
// informer, deployment and the like measure the cost of client-go itself.
//
// The package does not depend on Coxswain; it works with any server of the API.
package load

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Options is the size of the load. All fields must be set; DefaultOptions does.
type Options struct {
	Clients  int           // number of clients that send requests at the same time
	Objects  int           // existing pods of 2 kB for reads and patches
	Duration time.Duration // duration of a workload without a natural end
	Watchers int           // watchers in workloads watch and soak
	Wide     int           // how many watchers in soak watch all pods
	Rate     int           // changes per second in workloads watch and soak
	Replicas int           // replicas in workloads deployment and rollout
}

// DefaultOptions returns the options of the published figures.
func DefaultOptions() Options {
	return Options{Clients: 16, Objects: 10000, Duration: 5 * time.Second, Watchers: 200, Wide: 10, Rate: 100,
		Replicas: 1000}
}

// MaxObjects is the largest number of pods that a session creates for reads.
const MaxObjects = 200_000

// Check returns an error for options that would overload the machine instead of measuring the server.
func (o Options) Check() error {
	for _, v := range []struct {
		name     string
		value    int
		min, max int
	}{
		{"clients", o.Clients, 1, 1000},
		{"objects", o.Objects, 1, MaxObjects},
		{"watchers", o.Watchers, 1, 10_000},
		{"wide", o.Wide, 0, 10_000},
		{"rate", o.Rate, 1, 100_000},
		{"replicas", o.Replicas, 1, 100_000},
	} {
		if v.value < v.min || v.value > v.max {
			return fmt.Errorf("-%s: must be between %d and %d", v.name, v.min, v.max)
		}
	}
	if o.Duration < 100*time.Millisecond || o.Duration > 10*time.Minute {
		return fmt.Errorf("-duration: must be between 100ms and 10m")
	}
	return nil
}

// Result is the result of one run of a workload.
type Result struct {
	Workload string
	Unit     string // unit of operations: "request", "event", …
	// Operations is the number of successful operations within Elapsed. A run with a failed operation has no Result.
	Operations int
	Elapsed    time.Duration
	P50, P99   time.Duration // latency of an operation as a client measures it; 0 for workloads without latencies
	// CPU is the CPU time of the server's processes during Elapsed, and Resident their memory at the end, in bytes.
	// Both are 0 if the Target has no processes.
	CPU      time.Duration
	Resident int64
	// Ratio is CPU per operation as a multiple of that of the workload's reference, such as the same request for a
	// ConfigMap. It is 0 for workloads without a reference.
	Ratio float64
	// Notes are additional lines of output.
	Notes []string
}

// Rate returns operations per second.
func (r Result) Rate() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Operations) / r.Elapsed.Seconds()
}

// CPUPerOperation returns the server's CPU time per operation.
func (r Result) CPUPerOperation() time.Duration {
	if r.Operations == 0 {
		return 0
	}
	return r.CPU / time.Duration(r.Operations)
}

// Median returns the median of each figure of several runs of one workload.
func Median(runs []Result) Result {
	m := runs[0]
	m.Operations = middle(runs, func(r Result) int { return r.Operations })
	m.P50 = middle(runs, func(r Result) time.Duration { return r.P50 })
	m.P99 = middle(runs, func(r Result) time.Duration { return r.P99 })
	m.Resident = middle(runs, func(r Result) int64 { return r.Resident })
	// Rate and CPU per operation are medians of the runs' quotients, not quotients of medians.
	rate := middle(runs, Result.Rate)
	m.Elapsed = time.Duration(float64(m.Operations) / rate * float64(time.Second))
	m.CPU = middle(runs, Result.CPUPerOperation) * time.Duration(m.Operations)
	return m
}

func middle[T int | int64 | float64 | time.Duration](runs []Result, figure func(Result) T) T {
	values := make([]T, len(runs))
	for i, r := range runs {
		values[i] = figure(r)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// Workload is one kind of load.
type Workload struct {
	Name  string
	About string // description in the command's usage
	Unit  string
	// NeedsControllers is set if the workload needs controllers, a scheduler and nodes.
	NeedsControllers bool
	// Once is set if a second run on the same target would do no work, or give no better figures.
	Once bool
	// Long is set if the workload runs only when the command line names it.
	Long bool
	run  func(ctx context.Context, s *Session) (Result, error)
}

// Workloads lists all workloads in the order of their execution.
var Workloads = []Workload{
	{Name: "idle", Unit: "second", About: "no requests: the cost of an idle server", Once: true, run: idle},
	{Name: "create", Unit: "request", About: "create pods of 2 kB", run: create},
	{Name: "fill", Unit: "request", About: "memory: create -objects pods, once", Once: true, run: fill},
	{Name: "rest", Unit: "second", About: "memory: hold -objects pods without requests", Once: true, run: hold},
	{Name: "get", Unit: "request", About: "read one pod, consistently", run: get},
	{Name: "list", Unit: "list", About: "one client lists all pods, consistently", run: list},
	{Name: "pages", Unit: "list", About: "one client lists all pods in pages of 500", run: pages},
	{Name: "select", Unit: "list", About: "one client lists the 1 % of pods that a label selects", run: selected},
	{Name: "patch", Unit: "request", About: "merge patch of one pod's labels", run: patchMerge},
	{Name: "strategic", Unit: "request", About: "strategic merge patch of one pod's labels", run: patchStrategic},
	{Name: "update", Unit: "request", About: "update one pod's labels", run: update},
	{Name: "watch", Unit: "event", About: "-watchers watch -rate changes per second; includes the CPU of the changes",
		run: watch},
	{Name: "informer", Unit: "start", About: "a client-go informer starts and fills its cache with all pods",
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

// Named returns the workload with a name, or nil if there is none.
func Named(name string) *Workload {
	for i := range Workloads {
		if Workloads[i].Name == name {
			return &Workloads[i]
		}
	}
	return nil
}

// Run runs a workload once. The Result does not include its preparation.
func (w Workload) Run(ctx context.Context, s *Session) (Result, error) {
	r, err := w.run(ctx, s)
	if err != nil {
		return r, fmt.Errorf("%s: %w", w.Name, err)
	}
	r.Workload, r.Unit = w.Name, w.Unit
	return r, nil
}
