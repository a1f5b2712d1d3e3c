package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// testServer is a control plane in memory for a test in any language: it says where it is when it is ready, and ends
// with the process that started it.
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

When it is ready, with the definitions of --crds served and its Nodes Ready, it writes where it is to
standard output, or to --ready-fd, and closes that: assignments for a shell or, with --json, one line
with an object. A client needs the endpoint, the CA's file and the token, which is the administrator's;
the kubeconfig has the same. The server ends on a signal, or when the process that started it has ended,
and leaves nothing behind.

  eval "$(coxswain test-server --parent $$ &)"
  kubectl get nodes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := t.untilParentEnds(cmd.Context())
			defer cancel()
			if err := t.run(ctx); ctx.Err() == nil {
				return err
			}
			return nil // what failed, failed because it was to end
		},
	}
	t.add(cmd.Flags())
	return cmd
}

func (t *testServer) add(fs *pflag.FlagSet) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError) // for the defaults of flags that a test has no need of
	t.server.add(all)
	t.nodes.add(all, 1)
	t.controllers.addPool(all)
	for _, name := range []string{"bind-address", "nodes", "node-prefix", "service-cluster-ip-range",
		"service-node-port-range", "enable-admission-plugins", "disable-admission-plugins", "authorization-mode",
		"event-ttl", "service-lb-pool"} {
		fs.AddFlag(all.Lookup(name))
	}
	fs.IntVar(&t.server.securePort, "secure-port", 0, "port to serve HTTPS on; 0 takes any free one")
	fs.StringSliceVar(&t.crds, "crds", nil,
		"manifests, or folders of manifests, of CustomResourceDefinitions to install")
	fs.BoolVar(&t.apiOnly, "api-only", false, "run the API server alone, without controllers, scheduler and Nodes")
	fs.BoolVar(&t.json, "json", false, "say where the server is as JSON, in one line")
	fs.IntVar(&t.readyFD, "ready-fd", 1, "file descriptor to write to when the server is ready")
	fs.IntVar(&t.parent, "parent", 0, "process with which the server ends; 0 is the one that started it")
	fs.BoolVar(&t.stdin, "end-with-stdin", false, "end when standard input ends, too")
}

// address is where a test server is.
type address struct {
	Endpoint   string `json:"endpoint"`
	CA         string `json:"ca"`         // a file
	Token      string `json:"token"`      // the administrator's
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
	at := address{Token: rand.Text(), CA: filepath.Join(dir, "ca.crt"), PID: os.Getpid(),
		Kubeconfig: filepath.Join(dir, "admin"+datadir.KubeconfigSuffix)}
	f := &t.server
	f.dataDir, f.authn.tokenFile = "", filepath.Join(dir, "tokens")
	tokens := fmt.Sprintf("%s,%s,,%s\n", at.Token, certs.SuperAdminIdentity.User, certs.SuperAdminIdentity.Groups[0])
	if err := pki.WriteSecret(f.authn.tokenFile, []byte(tokens)); err != nil {
		return err
	}
	if t.apiOnly {
		f.admission.Disable = append(f.admission.Disable, "ServiceAccount") // pods wait for one that a controller makes
		return runServer(ctx, f, func(ctx context.Context, r *running) error { return t.announce(ctx, r, at) })
	}
	f.debug = map[string]http.Handler{controllers.DebugPath: t.controllers.debug}
	f.peers = map[string]string{"controller-manager": componentstatus.InProcess, "scheduler": componentstatus.InProcess}
	return runServer(ctx, f, func(ctx context.Context, r *running) error { return t.runParts(ctx, r, at) })
}

// runParts runs the components until ctx ends or one of them fails, and announces the server when the Nodes are Ready.
func (t *testServer) runParts(ctx context.Context, r *running, at address) error {
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
			err := t.announce(ctx, r, at)
			if err != nil {
				cancel()
			}
			announced <- err
		case <-ctx.Done():
			announced <- nil
		}
	}()
	err := r.runComponents(ctx, &t.server, &t.nodes, &t.controllers, &t.scheduler)
	cancel()
	return errors.Join(err, <-announced)
}

// announce installs the definitions, writes the files of the address, and says where the server is.
func (t *testServer) announce(ctx context.Context, r *running, at address) error {
	if len(t.crds) > 0 {
		admin, err := r.certify(certs.SuperAdminIdentity)
		if err != nil {
			return err
		}
		if err := installCRDs(ctx, admin, t.crds); err != nil {
			return fmt.Errorf("--crds: %w", err)
		}
	}
	at.Endpoint = r.url
	if err := os.WriteFile(at.CA, r.roots, 0o600); err != nil {
		return err
	}
	files := *r
	files.dir = filepath.Dir(at.Kubeconfig)
	if err := files.writeKubeconfig("admin", certs.SuperAdminIdentity); err != nil {
		return err
	}
	out := os.NewFile(uintptr(t.readyFD), "ready-fd")
	if out == nil {
		return fmt.Errorf("--ready-fd: %d is not a file descriptor", t.readyFD)
	}
	if err := errors.Join(at.write(out, t.json), out.Close()); err != nil {
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

// parentPeriod is how often a test server looks whether its parent is there. No system that Go supports tells a
// process of that in the same way, and Linux's PR_SET_PDEATHSIG is about the parent's thread.
const parentPeriod = 200 * time.Millisecond

// untilParentEnds returns a context that ends with the process that the server belongs to.
func (t *testServer) untilParentEnds(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if t.stdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	parent := os.Getppid()
	lives := func() bool { return os.Getppid() == parent }
	if t.parent != 0 {
		lives = func() bool { return !errors.Is(syscall.Kill(t.parent, 0), syscall.ESRCH) }
	}
	go func() {
		tick := time.NewTicker(parentPeriod)
		defer tick.Stop()
		for lives() {
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
