package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/scheduler"
	schedulerconfig "github.com/coxswain-dev/coxswain/scheduler/config"
)

// component runs until ctx ends.
type component func(ctx context.Context, as identities) error

// processFlags are those of a component that is a process of its own.
type processFlags struct {
	kubeconfig string
	address    string
	debug      map[string]http.Handler // what is served besides, by path
}

func (f *processFlags) add(fs *pflag.FlagSet, address string) {
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the API server; empty uses KUBECONFIG and kubectl's other places")
	fs.StringVar(&f.address, "metrics-bind-address", address, `where to serve /healthz, /metrics and /debug/pprof over HTTP; "" for nowhere`)
}

// leaderFlags are those of a component of which one at a time acts.
type leaderFlags struct {
	elect                                     bool
	leaseDuration, renewDeadline, retryPeriod time.Duration
}

func (f *leaderFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.elect, "leader-elect", true, "act only while holding the leader's Lease, so that several may run")
	fs.DurationVar(&f.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "how long a lost leader is waited for")
	fs.DurationVar(&f.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "how long a leader tries to renew before it gives up")
	fs.DurationVar(&f.retryPeriod, "leader-elect-retry-period", 2*time.Second, "how often to try to become or stay the leader")
}

type schedulerFlags struct {
	leader  leaderFlags
	config  string
	metrics prometheus.Registerer
}

func newScheduler() *cobra.Command {
	registry := prometheus.NewRegistry()
	f, p := &schedulerFlags{metrics: registry}, &processFlags{}
	cmd := &cobra.Command{
		Use:   "scheduler",
		Short: "Run the scheduler, as kube-scheduler does",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.run(cmd.Context(), registry, f.run)
		},
	}
	p.add(cmd.Flags(), "127.0.0.1:10259")
	f.leader.add(cmd.Flags())
	cmd.Flags().StringVar(&f.config, "config", "", "path to a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1); its leaderElection takes the place of the --leader-elect flags")
	return cmd
}

func (f *schedulerFlags) run(ctx context.Context, as identities) error {
	o := scheduler.Options{
		LeaderElect:   f.leader.elect,
		LeaseDuration: f.leader.leaseDuration, RenewDeadline: f.leader.renewDeadline, RetryPeriod: f.leader.retryPeriod,
		Metrics: f.metrics,
	}
	config := as.main
	if f.config == "" {
		return scheduler.Run(ctx, config, o)
	}
	document, err := os.ReadFile(f.config)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	c, err := schedulerconfig.Load(document)
	if err != nil {
		return fmt.Errorf("--config %s: %w", f.config, err)
	}
	o.Config, o.LeaderElect = c, *c.LeaderElection.LeaderElect
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = 0, 0, 0 // as the configuration says
	if c.ClientConnection.Kubeconfig != "" {
		if config, err = clientcmd.BuildConfigFromFlags("", c.ClientConnection.Kubeconfig); err != nil {
			return fmt.Errorf("--config %s: clientConnection.kubeconfig: %w", f.config, err)
		}
	}
	if c.ClientConnection.QPS > 0 {
		config = rest.CopyConfig(config)
		config.QPS, config.Burst = c.ClientConnection.QPS, int(c.ClientConnection.Burst)
	}
	return scheduler.Run(ctx, config, o)
}

type nodeFlags struct {
	count   int
	prefix  string
	runtime string
	static  string
	dir     string   // of the process runtime
	hide    []string // files and folders that containers may not see
	address string   // of the Nodes
	bind    string
	port    int
	caFile  string
	volumes []string // under which folders of node-local volumes are

	pids          int64 // of each pod
	eviction      node.EvictionOptions
	evictionGrace int
	shutdown      time.Duration
	critical      time.Duration // of it, for critical pods
}

func (f *nodeFlags) add(fs *pflag.FlagSet, count int) {
	f.addNames(fs, count, "how many Nodes this process is; 0 for none. With --runtime process 1, unless it is set")
	fs.StringVar(&f.static, "pod-manifest-path", "", "folder of manifests, of each of which every Node runs a pod; none where empty")
	fs.StringVar(&f.runtime, "runtime", node.Simulated, "what runs containers: simulated, or process, which runs their commands on this machine with its files (docs/node.md)")
	fs.Int64Var(&f.pids, "pod-max-pids", -1, "how many processes and threads a pod may have with --runtime process; -1 for as many as it likes")
	f.addEviction(fs)
}

// addEviction are the flags of eviction, with the kubelet's names and meaning.
func (f *nodeFlags) addEviction(fs *pflag.FlagSet) {
	e := &f.eviction
	fs.StringSliceVar(&e.Hard, "eviction-hard", nil, `thresholds below which pods are evicted at once, as memory.available<1Gi,nodefs.available<10%; "" for none. Default with --runtime simulated: `+
		strings.Join(node.DefaultEvictionHard(node.Simulated), ",")+"; with process: "+strings.Join(node.DefaultEvictionHard(node.Process), ","))
	fs.StringSliceVar(&e.Soft, "eviction-soft", nil, "thresholds below which pods are evicted after a grace period, as memory.available<1.5Gi")
	fs.StringSliceVar(&e.SoftGracePeriod, "eviction-soft-grace-period", nil, "how long each soft threshold must be crossed, as memory.available=1m30s")
	fs.StringSliceVar(&e.MinimumReclaim, "eviction-minimum-reclaim", nil, "how much more than a threshold has to be free before it counts as respected again, as memory.available=500Mi")
	fs.IntVar(&f.evictionGrace, "eviction-max-pod-grace-period", 0, "most seconds that a pod has for its end when a soft threshold evicts it")
	fs.DurationVar(&e.PressureTransitionPeriod, "eviction-pressure-transition-period", 5*time.Minute, "how long a Node's condition stays True after the last sign of pressure")
}

func (f *nodeFlags) addNames(fs *pflag.FlagSet, count int, usage string) {
	fs.IntVar(&f.count, "nodes", count, usage)
	fs.StringVar(&f.prefix, "node-prefix", "node-", "what the Nodes' names begin with; a number follows")
}

func (f *nodeFlags) check() error {
	if f.count < 0 || f.count > 10000 {
		return errors.New("--nodes: must be between 0 and 10000")
	}
	if f.evictionGrace < 0 {
		return errors.New("--eviction-max-pod-grace-period: must not be negative")
	}
	f.eviction.MaxPodGracePeriod = time.Duration(f.evictionGrace) * time.Second
	if f.shutdown < 0 || f.critical < 0 {
		return errors.New("--shutdown-grace-period: must not be negative")
	}
	if f.runtime != "" && !slices.Contains(node.Runtimes, f.runtime) {
		return fmt.Errorf("--runtime: %q is not one of: %s", f.runtime, strings.Join(node.Runtimes, ", "))
	}
	return nil
}

// setCount makes one Node of a machine, which is what programs run on.
func (f *nodeFlags) setCount(fs *pflag.FlagSet) {
	if f.runtime == node.Process && !fs.Changed("nodes") {
		f.count = 1
	}
}

// addEndpoint are the flags of an agent that is a process of its own, with the kubelet's names.
func (f *nodeFlags) addEndpoint(fs *pflag.FlagSet) {
	fs.StringVar(&f.address, "node-ip", "", "address of the Nodes, at which the API server finds this agent; where empty, the one that this machine has on the way to the API server")
	fs.StringVar(&f.bind, "address", "", "address to serve logs, streams and statistics on; --node-ip where empty")
	fs.IntVar(&f.port, "port", 0, "port to serve them on, over TLS; 0 takes any free one, which the Nodes' status tells")
	fs.StringVar(&f.dir, "root-dir", "/var/lib/coxswain-node", "folder for the volumes, logs and state of --runtime process, and for the record of static pods")
	fs.StringSliceVar(&f.volumes, "node-local-root", []string{"/var/lib/coxswain/volumes"}, "folders right below which the volumes of node-local classes are; of those that are reclaimed the agent removes the data there, and nothing elsewhere")
	fs.DurationVar(&f.shutdown, "shutdown-grace-period", 0, "end all pods within this time on SIGTERM or SIGINT, as at a machine's shutdown; with 0 what runs goes on running")
	fs.DurationVar(&f.critical, "shutdown-grace-period-critical-pods", 0, "how much of --shutdown-grace-period is kept for pods of critical priority, which end last")
	fs.StringVar(&f.caFile, "client-ca-file", "", "CAs of the client certificates that are believed there; the kubeconfig's CA where empty")
}

// names are those of the Nodes.
func (f *nodeFlags) names() []string {
	names := make([]string, f.count)
	for i := range names {
		names[i] = f.prefix + strconv.Itoa(i)
	}
	return names
}

func newNode() *cobra.Command {
	f, p := &nodeFlags{}, &processFlags{}
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run the node agent, as the kubelet does, for one or many Nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			f.setCount(cmd.Flags())
			f.hide = credentialFiles(p.kubeconfig)
			return p.run(cmd.Context(), prometheus.NewRegistry(), f.run)
		},
	}
	p.add(cmd.Flags(), "127.0.0.1:10248")
	f.add(cmd.Flags(), 1)
	f.addEndpoint(cmd.Flags())
	return cmd
}

func (f *nodeFlags) run(ctx context.Context, as identities) error {
	if f.count == 0 {
		<-ctx.Done()
		return nil
	}
	clients, err := f.clientCAs(as.main)
	if err != nil {
		return err
	}
	if f.address == "" {
		f.address = addressTowards(as.main.Host)
	}
	return node.Run(ctx, as.main, node.Options{
		Count: f.count, Prefix: f.prefix, Runtime: f.runtime, StaticPodPath: f.static, DataDir: f.dir, Hide: f.hide, VolumeRoots: f.volumes, Identity: as.node,
		Address: f.address, ListenAddress: f.bind, Port: f.port, ClientCAs: clients,
		MaxPodPIDs: max(0, f.pids), Eviction: f.eviction, ShutdownGracePeriod: f.shutdown, ShutdownGracePeriodCriticalPods: f.critical,
	})
}

// addressTowards is this machine's address on the way to a server; "" where that cannot be told. Nothing is sent.
func addressTowards(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	conn, err := net.Dial("udp", net.JoinHostPort(u.Hostname(), "443"))
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	return conn.LocalAddr().(*net.UDPAddr).IP.String()
}

// clientCAs are whose certificates the agent believes: by default of the CA that the API server has its own from,
// which is also who certifies the API server as a client.
func (f *nodeFlags) clientCAs(config *rest.Config) (*x509.CertPool, error) {
	pem := config.CAData
	file := f.caFile
	if file == "" && len(pem) == 0 {
		file = config.CAFile
	}
	if file != "" {
		var err error
		if pem, err = os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) && file != "" {
		return nil, fmt.Errorf("--client-ca-file: %s has no certificates", file)
	}
	return pool, nil
}

// run runs a component as a process of its own, with its health and metrics served.
func (f *processFlags) run(ctx context.Context, metrics prometheus.Gatherer, c component) error {
	as, err := loadIdentities(f.kubeconfig)
	if err != nil {
		return err
	}
	if f.address != "" {
		stop, err := serveDebug(f.address, metrics, f.debug)
		if err != nil {
			return fmt.Errorf("--metrics-bind-address: %w", err)
		}
		defer stop()
	}
	return c(ctx, as)
}

// serveDebug serves a component's health, metrics and profiles.
func serveDebug(address string, metrics prometheus.Gatherer, more map[string]http.Handler) (stop func(), err error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		mux.HandleFunc(path, ok)
	}
	all := prometheus.Gatherers{metrics, prometheus.DefaultGatherer}
	mux.Handle("/metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	for path, h := range more {
		mux.Handle(path, h)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			slog.Warn("serving metrics", "error", err)
		}
	}()
	return func() { _ = server.Close(); <-ended }, nil
}
