package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/coxswain-dev/coxswain/tools/bench/load"
)

// runningServer is a server that was running before the benchmark. All workloads share one session on it.
type runningServer struct {
	server  *load.Target
	options load.Options
	session *load.Session
}

func (g *runningServer) name() string { return g.server.Name }

func (g *runningServer) serve(ctx context.Context, _ load.Workload) (*served, error) {
	if g.session == nil {
		s, err := load.NewSession(ctx, g.server, g.options)
		if err != nil {
			return nil, err
		}
		g.session = s
	}
	return &served{session: g.session, done: func() error { return nil }}, nil
}

// close removes the session's objects, also after an interrupt.
func (g *runningServer) close() {
	if g.session == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := g.session.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench: clean up:", err)
	}
}

// ownServers starts a coxswain for every workload, so that no workload is slowed down by data of another one.
type ownServers struct {
	binary    string
	up        bool // start coxswain up even for workloads that need only the API server
	nodes     int
	options   load.Options
	wantStart bool
	built     string // temporary folder of a binary that prepare has built
}

func (o *ownServers) name() string { return "" }

// prepare builds the binary if it does not exist.
func (o *ownServers) prepare(ctx context.Context) error {
	if _, err := os.Stat(o.binary); err == nil {
		return nil
	}
	dir, err := os.MkdirTemp("", "coxswain-bench-")
	if err != nil {
		return err
	}
	o.built, o.binary = dir, filepath.Join(dir, "coxswain")
	build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, "./cmd/coxswain")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build coxswain: %w", err)
	}
	return nil
}

func (o *ownServers) close() {
	if o.built != "" {
		_ = os.RemoveAll(o.built)
	}
}

func (o *ownServers) serve(ctx context.Context, w load.Workload) (*served, error) {
	c, err := o.start(ctx, o.command(w.NeedsControllers)...)
	if err != nil {
		return nil, err
	}
	s, err := load.NewSession(ctx, c.target, o.options)
	if err != nil {
		return nil, fmt.Errorf("%w; %v", err, c.stop())
	}
	return &served{session: s, done: c.stop, restart: c.restart}, nil
}

// command returns the subcommand to start, with its flags.
func (o *ownServers) command(controllers bool) []string {
	if o.up || controllers {
		return []string{"up", "--nodes", strconv.Itoa(o.nodes)}
	}
	// No controller creates the service accounts that the plugin requires for pods.
	return []string{"apiserver", "--disable-admission-plugins", "ServiceAccount"}
}

// measureStart measures the time from exec until /readyz returns 200, and the server's memory after that.
func (o *ownServers) measureStart(ctx context.Context, runs int) (load.Result, error) {
	var results []load.Result
	for range max(runs, 5) {
		c, err := o.start(ctx, o.command(false)...)
		if err != nil {
			return load.Result{}, err
		}
		r, err := c.started()
		if err := firstError(err, c.stop()); err != nil {
			return load.Result{}, err
		}
		results = append(results, r)
	}
	return load.Median(results), nil
}

// child is a coxswain in a process of its own.
type child struct {
	binary  string
	args    []string
	process *exec.Cmd
	dir     string
	target  *load.Target
	took    time.Duration // time to become ready
}

// startLimit is how long a start may take.
const startLimit = 30 * time.Second

// start runs coxswain on a free port with data in a temporary folder.
func (o *ownServers) start(ctx context.Context, args ...string) (*child, error) {
	dir, err := os.MkdirTemp("", "coxswain-bench-data-")
	if err != nil {
		return nil, err
	}
	c := &child{binary: o.binary, args: append(args, "--data-dir", dir), dir: dir}
	if err := c.run(ctx, "0"); err != nil {
		return nil, fmt.Errorf("start %s: %w; %v", o.binary, err, c.stop())
	}
	return c, nil
}

// run starts the process on a port, and waits until it is ready.
func (c *child) run(ctx context.Context, port string) error {
	c.process = exec.Command(c.binary, append(c.args, "--secure-port", port)...)
	c.process.Stderr = os.Stderr
	start := time.Now()
	if err := c.process.Start(); err != nil {
		c.process = nil
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := c.awaitReady(ctx); err != nil {
		return err
	}
	c.took = time.Since(start)
	return nil
}

// awaitReady waits for the kubeconfig, which contains the port, and then for the server.
func (c *child) awaitReady(ctx context.Context) error {
	kubeconfig := filepath.Join(c.dir, "admin.kubeconfig")
	for c.target == nil {
		target, err := load.Open("", kubeconfig, c.process.Process.Pid)
		if err == nil {
			c.target = target
			break
		}
		if ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	c.target.Processes = []int{c.process.Process.Pid}
	return c.target.AwaitReady(ctx)
}

// started returns the cost of the start.
func (c *child) started() (load.Result, error) {
	cpu, resident, err := c.target.Used()
	return load.Result{
		Workload: "start", Unit: "start", Operations: 1,
		Elapsed: c.took, P50: c.took, P99: c.took, CPU: cpu, Resident: resident,
	}, err
}

// restart stops the process and starts it again with its data and on its port.
func (c *child) restart(ctx context.Context) (load.Result, error) {
	if err := c.end(); err != nil {
		return load.Result{}, err
	}
	if err := c.run(ctx, c.target.Port()); err != nil {
		return load.Result{}, fmt.Errorf("restart %s: %w", c.binary, err)
	}
	return c.started()
}

// stop stops the process and removes its data.
func (c *child) stop() error {
	defer os.RemoveAll(c.dir)
	return c.end()
}

// end sends SIGTERM to the process and waits until it has exited. It kills the process after 20 s.
func (c *child) end() error {
	if c.process == nil {
		return nil
	}
	_ = c.process.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(20*time.Second, func() { _ = c.process.Process.Kill() })
	defer kill.Stop()
	err := c.process.Wait()
	c.process = nil
	if err != nil {
		return fmt.Errorf("the server exited: %w", err)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
