// Command bench generates load on any Kubernetes API server and reports operations per second, latencies and, for
// servers on this machine, CPU per operation and memory.
//
//	go run ./tools/bench                                   # starts a coxswain
//	go run ./tools/bench -page docs/performance.md         # and writes the results into the document
//	go run ./tools/bench -kubeconfig K -pid 17,18 get list # a running server and its etcd
//	go run ./tools/bench -kubeconfig A -pid 17 -compare B -compare-pid 23,24
//	go run ./tools/bench -watchers 1000 -rate 500 -duration 1m soak
//	go run ./tools/bench -sizes 1000,10000,50000 growth
//	go run ./tools/bench custom-get custom-list custom-watch definitions
//	go run ./tools/bench -nodes 1000 -objects 50000 cluster
//
// A running server must allow the creation of pods: kube-apiserver without a controller manager needs
// --disable-admission-plugins=ServiceAccount. The benchmark creates two namespaces for its objects and removes them.
//
// CPU per operation is the figure to compare: it depends only on the server, whereas rate and latency depend on all
// processes of the machine, including the load generator.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/coxswain-dev/coxswain/tools/bench/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.SetLogger(logr.Discard()) // hides client-go's messages about informers that are stopped on purpose
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// plan is the command line's work.
type plan struct {
	options     load.Options
	runs        int
	count       int // number of definitions
	workloads   []load.Workload
	sources     []source
	own         *ownServers  // nil with -kubeconfig
	growth      *growth      // nil unless the command line names it
	definitions *definitions // nil unless the command line names it
	page        *page        // nil without -page
}

// source provides a server for each workload.
type source interface {
	name() string
	serve(ctx context.Context, w load.Workload) (*served, error)
}

// served is a session on a source's server.
type served struct {
	session *load.Session
	done    func() error // must be called after use
	// restart stops the server, starts it again with its data, and returns the cost of the start. It is nil for a
	// server that the benchmark did not start.
	restart func(ctx context.Context) (load.Result, error)
}

func run(ctx context.Context, args []string) error {
	p, err := parse(args)
	if err != nil {
		return err
	}
	defer p.close()
	if p.own != nil {
		if err := p.own.prepare(ctx); err != nil {
			return err
		}
	}
	if p.page != nil {
		if p.page.build, err = readBuild(ctx, p.own.binary); err != nil {
			return err
		}
	}
	if err := p.measureWorkloads(ctx); err != nil {
		return err
	}
	if p.page != nil {
		return p.page.write(time.Now())
	}
	for _, src := range p.sources {
		if p.growth != nil {
			err = p.growth.measure(ctx, os.Stdout, src)
		}
		if p.definitions != nil && err == nil {
			err = p.definitions.measure(ctx, os.Stdout, src)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *plan) measureWorkloads(ctx context.Context) error {
	wantStart := p.own != nil && p.own.wantStart
	if !wantStart && len(p.workloads) == 0 {
		return nil
	}
	table := newTable(os.Stdout, p.sources)
	if wantStart {
		cold, err := p.own.measureStart(ctx, p.runs)
		if err != nil {
			return err
		}
		table.row([]load.Result{cold})
		p.keep(cold)
	}
	for _, w := range p.workloads {
		medians, err := p.measure(ctx, w)
		if err != nil {
			return err
		}
		table.row(medians)
		p.keep(medians[0])
	}
	return nil
}

// keep adds a result to the page, if there is one.
func (p *plan) keep(r load.Result) {
	if p.page != nil {
		p.page.results = append(p.page.results, r)
	}
}

// measure runs one workload on all sources in turn, so that a busy moment of the machine affects all of them.
func (p *plan) measure(ctx context.Context, w load.Workload) (medians []load.Result, err error) {
	sessions := make([]*load.Session, len(p.sources))
	for i, src := range p.sources {
		served, err := src.serve(ctx, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", src.name(), err)
		}
		defer func() { err = errors.Join(err, served.done()) }()
		sessions[i] = served.session
	}
	runs, times := make([][]load.Result, len(sessions)), p.runs
	if w.Once {
		times = 1
	}
	for range times {
		for i, s := range sessions {
			r, err := w.Run(ctx, s)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.sources[i].name(), err)
			}
			runs[i] = append(runs[i], r)
		}
	}
	for _, r := range runs {
		medians = append(medians, load.Median(r))
	}
	return medians, nil
}

func (p *plan) close() {
	for _, s := range p.sources {
		if g, ok := s.(*runningServer); ok {
			g.close()
		}
	}
	if p.own != nil {
		p.own.close()
	}
}

func parse(args []string) (*plan, error) {
	p := &plan{options: load.DefaultOptions()}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	var (
		kubeconfig = fs.String("kubeconfig", "",
			"kubeconfig of the server; if empty, a coxswain is started, and its data are removed afterwards")
		pids        = fs.String("pid", "", "the server's process IDs, separated by commas: API server and etcd")
		compare     = fs.String("compare", "", "kubeconfig of a second server, to print ratios")
		comparePIDs = fs.String("compare-pid", "", "the second server's process IDs")
		binary      = fs.String("binary", "bin/coxswain",
			"coxswain to start; built from the sources in this folder if it does not exist")
		up = fs.Bool("up", false,
			"start coxswain up for every workload, not only for workloads that need controllers")
		sizes    = fs.String("sizes", "1000,10000,50000", "numbers of pods of workload growth")
		nodes    = fs.Int("nodes", 10, "simulated nodes of coxswain up")
		document = fs.String("page", "",
			"document to write the results into, between its lines "+pageBegin+" and "+pageEnd)
	)
	fs.IntVar(&p.options.Clients, "clients", p.options.Clients, "clients that send requests at the same time")
	fs.IntVar(&p.options.Objects, "objects", p.options.Objects, "existing pods for reads and patches")
	fs.DurationVar(&p.options.Duration, "duration", p.options.Duration,
		"duration of each run of a workload without a natural end")
	fs.IntVar(&p.options.Watchers, "watchers", p.options.Watchers, "watchers of workloads watch and soak")
	fs.IntVar(&p.options.Wide, "wide", p.options.Wide,
		"how many of soak's watchers watch all pods, as controllers do, not one node's pods")
	fs.IntVar(&p.options.Rate, "rate", p.options.Rate, "changes per second in workloads watch and soak")
	fs.IntVar(&p.options.Replicas, "replicas", p.options.Replicas, "replicas of workloads deployment and rollout")
	fs.IntVar(&p.count, "definitions", 1000, "CustomResourceDefinitions of workload definitions")
	fs.IntVar(&p.runs, "runs", 3, "runs of each workload, to report the median of")
	fs.Usage = func() { usage(fs) }
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if err := p.options.Check(); err != nil {
		return nil, err
	}
	growthSizes, err := parseSizes(*sizes)
	if err != nil {
		return nil, err
	}
	if p.count < 1 || p.count > 10_000 {
		return nil, errors.New("-definitions: must be between 1 and 10000")
	}
	if p.runs < 1 || p.runs > 100 {
		return nil, errors.New("-runs: must be between 1 and 100")
	}
	if *kubeconfig == "" {
		if *pids != "" || *compare != "" {
			return nil, errors.New("-pid and -compare need -kubeconfig")
		}
		p.own = &ownServers{binary: *binary, up: *up, nodes: *nodes, options: p.options}
		p.sources = []source{p.own}
		if *document != "" {
			return p, p.choosePage(*document, fs)
		}
		return p, p.choose(fs.Args(), growthSizes)
	}
	if *document != "" {
		return nil, errors.New("-page needs a server that bench starts: leave out -kubeconfig")
	}
	if err := p.addServer("", *kubeconfig, *pids); err != nil {
		return nil, err
	}
	if *compare != "" {
		if err := p.addServer("compared", *compare, *comparePIDs); err != nil {
			return nil, err
		}
	}
	return p, p.choose(fs.Args(), growthSizes)
}

// addServer adds a running server.
func (p *plan) addServer(name, kubeconfig, pids string) error {
	var processes []int
	for text := range strings.SplitSeq(pids, ",") {
		if text == "" {
			continue
		}
		pid, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a process ID", text)
		}
		processes = append(processes, pid)
	}
	target, err := load.Open(name, kubeconfig, processes...)
	if err != nil {
		return err
	}
	p.sources = append(p.sources, &runningServer{server: target, options: p.options})
	return nil
}

// choose sets the named workloads, or all except the long ones.
func (p *plan) choose(names []string, sizes []int) error {
	for _, name := range names {
		switch {
		case name == "growth":
			p.growth = &growth{sizes: sizes, runs: p.runs}
		case name == "definitions":
			p.definitions = &definitions{count: p.count, runs: p.runs}
		case name == "start" && p.own != nil:
			p.own.wantStart = true
		case load.Named(name) == nil:
			return fmt.Errorf("there is no workload %q", name)
		default:
			p.workloads = append(p.workloads, *load.Named(name))
		}
	}
	if len(names) > 0 {
		return nil
	}
	if p.own != nil {
		p.own.wantStart = true
	}
	p.workloads = slices.DeleteFunc(slices.Clone(load.Workloads), func(w load.Workload) bool { return w.Long })
	return nil
}

// choosePage sets the workloads of the page.
func (p *plan) choosePage(path string, fs *flag.FlagSet) (err error) {
	if fs.NArg() > 0 {
		return errors.New("-page runs its own workloads: name none")
	}
	if p.page, err = newPage(path); err != nil {
		return err
	}
	p.page.command, p.page.options, p.page.runs = commandLine(fs), p.options, p.runs
	for _, row := range operations {
		if w := load.Named(row.workload); w != nil {
			p.workloads = append(p.workloads, *w)
		}
	}
	p.own.wantStart = true
	return nil
}

// parseSizes parses the sizes of growth, which must be in ascending order.
func parseSizes(text string) (sizes []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > load.MaxObjects || len(sizes) > 0 && n <= sizes[len(sizes)-1] {
			return nil, fmt.Errorf("-sizes: %q: must be numbers up to %d, each larger than the one before", text,
				load.MaxObjects)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

func usage(fs *flag.FlagSet) {
	w := fs.Output()
	fmt.Fprint(w, "bench [flags] [workload...]\n\nWorkloads, by default all except custom-*, cluster, soak, growth "+
		"and definitions:\n")
	fmt.Fprintf(w, "  %-13s %s\n", "start", "cold start of a coxswain until /readyz succeeds")
	for _, l := range load.Workloads {
		fmt.Fprintf(w, "  %-13s %s\n", l.Name, l.About)
	}
	fmt.Fprintf(w, "  %-13s %s\n", "growth",
		"reads, memory and, for a coxswain that bench starts, a restart, with more and more pods")
	fmt.Fprintf(w, "  %-13s %s\n", "definitions",
		"unused CustomResourceDefinitions of 20 kB: time until they are served, memory, discovery, restart")
	fmt.Fprint(w, "\nFlags:\n")
	fs.PrintDefaults()
}
