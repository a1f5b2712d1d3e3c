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

// givenServer is one that runs already. All workloads share it, and one session on it.
type givenServer struct {
	server  *load.Target
	options load.Options
	session *load.Session
}

func (g *givenServer) name() string { return g.server.Name }

func (g *givenServer) serve(ctx context.Context, _ load.Workload) (*served, error) {
	if g.session == nil {
		s, err := load.NewSession(ctx, g.server, g.options)
		if err != nil {
			return nil, err
		}
		g.session = s
	}
	return &served{session: g.session, done: func() error { return nil }}, nil
}

// close cleans up even when the load was interrupted.
func (g *givenServer) close() {
	if g.session == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := g.session.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench: cleaning up:", err)
	}
}

// ownServers starts a coxswain for every workload, so that none is slowed down by what
// another left behind.
type ownServers struct {
	binary    string
	up        bool // even where the API server alone would do
	nodes     int
	options   load.Options
	wantStart bool
	built     string // folder of a binary made here
}

func (o *ownServers) name() string { return "" }

// prepare builds the binary if there is none.
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
		return fmt.Errorf("building coxswain: %w", err)
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

// command is the subcommand that is started, with its flags.
func (o *ownServers) command(controllers bool) []string {
	if o.up || controllers {
		return []string{"up", "--nodes", strconv.Itoa(o.nodes)}
	}
	// Nobody makes the service accounts that pods would have to have.
	return []string{"apiserver", "--disable-admission-plugins", "ServiceAccount"}
}

// measureStart tells how long it takes from exec until /readyz answers 200, and what the
// server then holds in memory.
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

// child is a coxswain that runs as a process of its own.
type child struct {
	binary  string
	args    []string
	process *exec.Cmd
	dir     string
	target  *load.Target
	took    time.Duration // to become ready
}

// startLimit is how long a start may take before it is given up.
const startLimit = 30 * time.Second

// start runs coxswain on a free port with data in a folder of its own.
func (o *ownServers) start(ctx context.Context, args ...string) (*child, error) {
	dir, err := os.MkdirTemp("", "coxswain-bench-data-")
	if err != nil {
		return nil, err
	}
	c := &child{binary: o.binary, args: append(args, "--data-dir", dir), dir: dir}
	if err := c.run(ctx, "0"); err != nil {
		return nil, fmt.Errorf("starting %s: %w; %v", o.binary, err, c.stop())
	}
	return c, nil
}

// run starts the process on a port, and waits until it is ready.
func (c *child) run(ctx context.Context, port string) error {
	c.process = exec.Command(c.binary, append(c.args, "--secure-port", port)...)
	c.process.Stderr = os.Stderr
	began := time.Now()
	if err := c.process.Start(); err != nil {
		c.process = nil
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := c.awaitReady(ctx); err != nil {
		return err
	}
	c.took = time.Since(began)
	return nil
}

// awaitReady waits for the kubeconfig, which names the port, and then for the server.
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

// started is what the start came to.
func (c *child) started() (load.Result, error) {
	cpu, resident, err := c.target.Used()
	return load.Result{
		Workload: "start", Unit: "start", Operations: 1,
		Elapsed: c.took, P50: c.took, P99: c.took, CPU: cpu, Resident: resident,
	}, err
}

// restart ends the process in order and starts it again on its data and its port.
func (c *child) restart(ctx context.Context) (load.Result, error) {
	if err := c.end(); err != nil {
		return load.Result{}, err
	}
	if err := c.run(ctx, c.target.Port()); err != nil {
		return load.Result{}, fmt.Errorf("starting %s again: %w", c.binary, err)
	}
	return c.started()
}

// stop ends the process and removes its data.
func (c *child) stop() error {
	defer os.RemoveAll(c.dir)
	return c.end()
}

// end ends the process and waits for it.
func (c *child) end() error {
	if c.process == nil {
		return nil
	}
	_ = c.process.Process.Signal(syscall.SIGTERM)
	giveUp := time.AfterFunc(20*time.Second, func() { _ = c.process.Process.Kill() })
	defer giveUp.Stop()
	err := c.process.Wait()
	c.process = nil
	if err != nil {
		return fmt.Errorf("the server ended: %w", err)
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
