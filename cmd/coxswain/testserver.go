package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver/componentstatus"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
	"github.com/coxswain-dev/coxswain/controllers"
)

// testServer is a control plane in memory for a test in any language. It prints its address when it is ready, and exits
// when the process that started it exits.
type testServer struct {
	server      serverFlags
	nodes       nodeFlags
	controllers controllersFlags
	scheduler   schedulerFlags

	crds    []string
	apiOnly bool
	json    bool
	readyFD int
	parent  int
	stdin   bool
}

func newTestServer() *cobra.Command {
	registry := prometheus.NewRegistry()
	t := &testServer{
		server:      serverFlags{metrics: []prometheus.Gatherer{clientMetrics, controllers.Metrics(), registry}},
		controllers: controllersFlags{debug: &controllers.Debug{}},
		scheduler:   schedulerFlags{metrics: registry},
	}
	cmd := &cobra.Command{
		Use:   "test-server",
		Short: "Run a control plane in memory for a test, until the test's process ends",
		Long: `Run a control plane in memory for a test in any language.

When it is ready, with the definitions of --crds served and its Nodes Ready, it writes its address and
credentials to standard output or to --ready-fd, and closes it: assignments for a shell or, with --json,
one line with an object. A client needs the endpoint, the CA's file and the token, which is the
administrator's; the kubeconfig contains all three. The server exits on a signal, or when the process
that started it has exited, and removes its files.

  eval "$(coxswain test-server --parent $$ &)"
  kubectl get nodes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := t.untilParentEnds(cmd.Context())
			defer cancel()
			if err := t.run(ctx); ctx.Err() == nil {
				return err
			}
			return nil // the error is a consequence of the shutdown
		},
	}
	t.add(cmd.Flags())
	return cmd
}

func (t *testServer) add(fs *pflag.FlagSet) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError) // sets the defaults of flags that test-server does not have
	t.server.add(all)
	t.nodes.add(all, 1)
	t.controllers.addPool(all, "")
	for _, name := range []string{"bind-address", "nodes", "node-prefix", "service-cluster-ip-range",
		"service-node-port-range", "enable-admission-plugins", "disable-admission-plugins", "authorization-mode",
		"event-ttl", "service-lb-pool", "simulated-run-for"} {
		fs.AddFlag(all.Lookup(name))
	}
	fs.IntVar(&t.server.securePort, "secure-port", 0, "port to serve HTTPS on; 0 takes any free one")
	fs.StringSliceVar(&t.crds, "crds", nil,
		"manifests, or folders of manifests, of CustomResourceDefinitions to install")
	fs.BoolVar(&t.apiOnly, "api-only", false, "run the API server alone, without controllers, scheduler and Nodes")
	fs.BoolVar(&t.json, "json", false, "write the address as JSON, in one line")
	fs.IntVar(&t.readyFD, "ready-fd", 1, "file descriptor to write to when the server is ready")
	fs.IntVar(&t.parent, "parent", 0, "exit when the process with this ID has exited; 0 is the process that started it")
	fs.BoolVar(&t.stdin, "end-with-stdin", false, "also exit when standard input ends")
}

// address is the address of a test server, with the administrator's credentials.
type address struct {
	Endpoint   string `json:"endpoint"`
	CA         string `json:"ca"` // a file
	Token      string `json:"token"`
	Kubeconfig string `json:"kubeconfig"` // a file
	PID        int    `json:"pid"`
}

func (t *testServer) run(ctx context.Context) error {
	if err := t.nodes.check(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "coxswain-test-server-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	target := address{Token: rand.Text(), CA: filepath.Join(dir, "ca.crt"), PID: os.Getpid(),
		Kubeconfig: filepath.Join(dir, "admin"+datadir.KubeconfigSuffix)}
	f := &t.server
	f.dataDir, f.authn.tokenFile = "", filepath.Join(dir, "tokens")
	admin := certs.SuperAdminIdentity
	tokens := fmt.Sprintf("%s,%s,,%s\n", target.Token, admin.User, admin.Groups[0])
	if err := pki.WriteSecret(f.authn.tokenFile, []byte(tokens)); err != nil {
		return err
	}
	if t.apiOnly {
		f.admission.Disable = append(f.admission.Disable, "ServiceAccount") // no controller creates ServiceAccounts
		return runServer(ctx, f, func(ctx context.Context, r *running) error { return t.announce(ctx, r, target) })
	}
	f.debug = debugHandlers(&t.controllers, &t.scheduler)
	f.peers = map[string]string{"controller-manager": componentstatus.InProcess, "scheduler": componentstatus.InProcess}
	return runServer(ctx, f, func(ctx context.Context, r *running) error { return t.runParts(ctx, r, target) })
}

// runParts runs the components until ctx ends or one of them fails, and announces the server when the Nodes are Ready.
func (t *testServer) runParts(ctx context.Context, r *running, target address) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready, announced := make(chan struct{}), make(chan error, 1)
	t.nodes.ready = func() { close(ready) }
	if t.nodes.count == 0 {
		close(ready)
	}
	go func() {
		select {
		case <-ready:
			err := t.announce(ctx, r, target)
			if err != nil {
				cancel()
			}
			announced <- err
		case <-ctx.Done():
			announced <- nil
		}
	}()
	err := r.runComponents(ctx, &t.server, &t.nodes, &t.controllers, &t.scheduler, nil)
	cancel()
	return errors.Join(err, <-announced)
}

// announce installs the definitions, writes the address's files, and then writes the address to --ready-fd.
func (t *testServer) announce(ctx context.Context, r *running, target address) error {
	if len(t.crds) > 0 {
		admin, err := r.certify(certs.SuperAdminIdentity)
		if err != nil {
			return err
		}
		if err := installCRDs(ctx, admin, t.crds); err != nil {
			return fmt.Errorf("--crds: %w", err)
		}
	}
	target.Endpoint = r.url
	if err := os.WriteFile(target.CA, r.roots, 0o600); err != nil {
		return err
	}
	files := *r
	files.dir = filepath.Dir(target.Kubeconfig)
	if err := files.writeKubeconfig("admin", certs.SuperAdminIdentity); err != nil {
		return err
	}
	out := os.NewFile(uintptr(t.readyFD), "ready-fd")
	if out == nil {
		return fmt.Errorf("--ready-fd: %d is not a file descriptor", t.readyFD)
	}
	if err := errors.Join(target.write(out, t.json), out.Close()); err != nil {
		return fmt.Errorf("--ready-fd: %w", err)
	}
	return nil
}

func (a address) write(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(a)
	}
	var text strings.Builder
	for _, v := range []struct{ name, value string }{
		{"KUBECONFIG", a.Kubeconfig}, {"COXSWAIN_ENDPOINT", a.Endpoint}, {"COXSWAIN_CA", a.CA},
		{"COXSWAIN_TOKEN", a.Token}, {"COXSWAIN_PID", fmt.Sprint(a.PID)},
	} {
		fmt.Fprintf(&text, "export %s=%s\n", v.name, shellWord(v.value))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// parentPeriod is how often a test server checks whether its parent still exists. Systems have no common way to notify
// a process of that, and Linux's PR_SET_PDEATHSIG applies to the parent's thread.
const parentPeriod = 200 * time.Millisecond

// untilParentEnds returns a context that ends when the parent exits and, with --end-with-stdin, when standard input
// ends.
func (t *testServer) untilParentEnds(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if t.stdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	parent := os.Getppid()
	running := func() bool { return os.Getppid() == parent }
	if t.parent != 0 {
		running = func() bool { return !errors.Is(syscall.Kill(t.parent, 0), syscall.ESRCH) }
	}
	go func() {
		tick := time.NewTicker(parentPeriod)
		defer tick.Stop()
		for running() {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel()
	}()
	return ctx, cancel
}
