package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/apiserver/controlplane"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/kubeconfig"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/listener"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/ownprocess"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/serviceranges"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/internal/zpages"
	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/node/process"
	"github.com/coxswain-dev/coxswain/scheduler"
	schedulerconfig "github.com/coxswain-dev/coxswain/scheduler/config"
)

// component runs a component until ctx ends.
type component func(ctx context.Context, as identities) error

// processFlags are the flags of a component in a process of its own.
type processFlags struct {
	kubeconfig string
	endpoint   endpointFlags
	debug      map[string]http.Handler // additional handlers, by path
}

// add adds the flags of a component with its name in Kubernetes, and with the address of its metrics.
func (f *processFlags) add(fs *pflag.FlagSet, component, address string) {
	fs.StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig of the API server; empty uses KUBECONFIG and kubectl's other places")
	f.endpoint.add(fs, component, address)
}

// leaderFlags are the flags of a component with leader election.
type leaderFlags struct {
	elect                                     bool
	leaseDuration, renewDeadline, retryPeriod time.Duration
}

func (f *leaderFlags) add(fs *pflag.FlagSet) {
	d := controllers.DefaultLeaderElection()
	fs.BoolVar(&f.elect, "leader-elect", true, "act only while holding the leader's Lease, so that several may run")
	fs.DurationVar(&f.leaseDuration, "leader-elect-lease-duration", d.LeaseDuration,
		"how long other candidates wait before they replace a leader that does not renew its Lease")
	fs.DurationVar(&f.renewDeadline, "leader-elect-renew-deadline", d.RenewDeadline,
		"how long a leader tries to renew before it gives up")
	fs.DurationVar(&f.retryPeriod, "leader-elect-retry-period", d.RetryPeriod,
		"how often to try to become or stay the leader")
}

type schedulerFlags struct {
	time    timing
	leader  leaderFlags
	config  string
	metrics prometheus.Registerer
	log     *slog.Logger // nil is slog.Default

	resources scheduler.PodResources
	// running is the configuration of the running scheduler, for /configz; nil before it runs.
	running atomic.Pointer[schedulerconfig.Config]
}

// debugHandlers returns the handlers of controllers and scheduler in the process of an API server, by path.
func debugHandlers(c *controllersFlags, s *schedulerFlags) map[string]http.Handler {
	return map[string]http.Handler{controllers.DebugPath: c.debug, resourcesPath: s.resourceMetrics()}
}

// resourceMetrics returns the handler of resourcesPath.
func (f *schedulerFlags) resourceMetrics() http.Handler {
	pods := prometheus.NewRegistry()
	pods.MustRegister(&f.resources)
	return promhttp.HandlerFor(pods, promhttp.HandlerOpts{})
}

// configz returns the handler of /configz.
func (f *schedulerFlags) configz() http.Handler {
	return zpages.Configz("componentconfig", func() any {
		c := f.running.Load()
		if c == nil {
			c = schedulerconfig.Default()
		}
		return c
	})
}

// configzPath is the path at which components serve their configuration.
const configzPath = "/configz"

// resourcesPath is the path at which kube-scheduler serves the resources of all pods.
const resourcesPath = "/metrics/resources"

func newScheduler() *cobra.Command {
	registry := prometheus.NewRegistry()
	f, p := &schedulerFlags{metrics: registry}, &processFlags{}
	cmd := &cobra.Command{
		Use:   "scheduler",
		Short: "Run the scheduler, as kube-scheduler does",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.debug = map[string]http.Handler{resourcesPath: f.resourceMetrics(), configzPath: f.configz()}
			// The metrics of leader election are in the controllers' registry, although no controllers run here.
			return p.run(cmd.Context(), prometheus.Gatherers{registry, controllers.Metrics()}, f.run)
		},
	}
	p.add(cmd.Flags(), "kube-scheduler", "127.0.0.1:10259")
	f.leader.add(cmd.Flags())
	cmd.Flags().StringVar(&f.config, "config", "", "path to a KubeSchedulerConfiguration "+
		"(kubescheduler.config.k8s.io/v1); its leaderElection replaces the --leader-elect flags")
	return cmd
}

func (f *schedulerFlags) run(ctx context.Context, as identities) error {
	o := scheduler.Options{
		LeaderElect:   f.leader.elect,
		LeaseDuration: f.leader.leaseDuration, RenewDeadline: f.leader.renewDeadline, RetryPeriod: f.leader.retryPeriod,
		Metrics: f.metrics, PodResources: &f.resources, Log: f.log, Clock: f.time.clock(), Quiescence: f.time.parts,
	}
	config := as.main
	if f.config == "" {
		o.Config = schedulerconfig.Default()
		l := &o.Config.LeaderElection
		l.LeaderElect = &f.leader.elect
		l.LeaseDuration.Duration, l.RenewDeadline.Duration, l.RetryPeriod.Duration = f.leader.leaseDuration,
			f.leader.renewDeadline, f.leader.retryPeriod
		f.running.Store(o.Config)
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
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = 0, 0, 0 // the configuration sets them
	f.running.Store(c)
	if c.ClientConnection.Kubeconfig != "" {
		own, err := loadIdentities(c.ClientConnection.Kubeconfig)
		if err != nil {
			return fmt.Errorf("--config %s: clientConnection.kubeconfig: %w", f.config, err)
		}
		config = own.main
	}
	if c.ClientConnection.QPS > 0 {
		config = rest.CopyConfig(config)
		config.QPS, config.Burst = c.ClientConnection.QPS, int(c.ClientConnection.Burst)
	}
	return scheduler.Run(ctx, config, o)
}

type nodeFlags struct {
	time    timing
	count   int
	prefix  string
	runtime string
	static  string
	dir     string   // of the process runtime
	hide    []string // files and folders that are hidden from containers
	address string   // of the Nodes
	bind    string
	port    int
	anyPort bool          // another port will do if port is in use
	serving endpointFlags // of the agent's endpoint: TLS, and the CAs of its clients

	simulated simulatedFlags
	network   networkFlags
	// machine, if not nil, is called with the machine's address in the network of its pods, each time a Node is added.
	machine   func(context.Context, netip.Addr) error
	bootstrap bool     // request a serving certificate from the API server
	volumes   []string // parent folders of node-local volumes

	clusterDNS    []string
	clusterDomain string

	pids          int64                // of each pod
	reserved      [2]map[string]string // --kube-reserved and --system-reserved
	sysctls       []string
	eviction      node.EvictionOptions
	evictionGrace int
	shutdown      time.Duration
	critical      time.Duration // part of shutdown, for critical pods

	cleanup bool // clean up instead of running

	ready func() // if not nil, called when every Node is Ready

	endpoint   net.Listener // the agent's, if it is for this machine only
	components []node.Component
	log        *slog.Logger // nil is slog.Default
}

func (f *nodeFlags) add(fs *pflag.FlagSet, count int) {
	f.addNames(fs, count, "number of Nodes that this process runs; with --runtime process the default is 1")
	fs.StringVar(&f.static, "pod-manifest-path", "",
		"folder of manifests of static pods, which every Node runs; none if empty")
	fs.StringVar(&f.runtime, "runtime", node.Simulated, "runtime of containers: simulated, or process, which runs "+
		"their commands on this machine with its files (docs/node.md)")
	fs.Int64Var(&f.pids, "pod-max-pids", -1,
		"how many processes and threads a pod may have with --runtime process; -1 for no limit")
	fs.StringToStringVar(&f.reserved[0], "kube-reserved", nil, "cpu, memory and ephemeral-storage of a Node that are "+
		"reserved for Kubernetes' own components, such as cpu=200m,memory=500Mi")
	fs.StringToStringVar(&f.reserved[1], "system-reserved", nil, "the same for other processes of the machine")
	fs.StringSliceVar(&f.sysctls, "allowed-unsafe-sysctls", nil,
		"sysctls that pods may set besides the safe ones, or prefixes of their names followed by *, such as "+
			"kernel.msg*,net.core.somaxconn")
	fs.StringSliceVar(&f.clusterDNS, "cluster-dns", nil, "addresses of the DNS servers of pods with dnsPolicy "+
		"ClusterFirst, with --runtime process; if empty, these pods use the machine's")
	fs.StringVar(&f.clusterDomain, "cluster-domain", "cluster.local", "domain of the cluster's names")
	f.simulated.add(fs)
	f.addEviction(fs)
	f.network.add(fs, "pods of --runtime process")
	f.network.addDNS(fs)
}

// addEviction adds the flags of eviction, with the kubelet's names and meaning.
func (f *nodeFlags) addEviction(fs *pflag.FlagSet) {
	e := &f.eviction
	fs.StringSliceVar(&e.Hard, "eviction-hard", nil,
		`thresholds below which pods are evicted at once, such as memory.available<1Gi,nodefs.available<10%; `+
			`"" for none. Default with --runtime simulated: `+
			strings.Join(node.DefaultEvictionHard(node.Simulated), ",")+"; with process: "+
			strings.Join(node.DefaultEvictionHard(node.Process), ","))
	fs.StringSliceVar(&e.Soft, "eviction-soft", nil,
		"thresholds below which pods are evicted after a grace period, such as memory.available<1.5Gi")
	fs.StringSliceVar(&e.SoftGracePeriod, "eviction-soft-grace-period", nil,
		"how long each soft threshold must be crossed, such as memory.available=1m30s")
	fs.StringSliceVar(&e.MinimumReclaim, "eviction-minimum-reclaim", nil,
		"how much more than a threshold must be free before the pressure ends, such as memory.available=500Mi")
	fs.IntVar(&f.evictionGrace, "eviction-max-pod-grace-period", 0,
		"longest grace period, in seconds, of a pod that a soft threshold evicts")
	fs.DurationVar(&e.PressureTransitionPeriod, "eviction-pressure-transition-period", 5*time.Minute,
		"how long a Node's condition stays True after the last sign of pressure")
}

func (f *nodeFlags) addNames(fs *pflag.FlagSet, count int, usage string) {
	fs.IntVar(&f.count, "nodes", count, usage)
	fs.StringVar(&f.prefix, "node-prefix", "node-", "prefix of the Nodes' names, which end with a number")
}

func (f *nodeFlags) check() error {
	if f.count < 0 || f.count > 10000 {
		return errors.New("--nodes: must be between 0 and 10000")
	}
	if f.evictionGrace < 0 {
		return errors.New("--eviction-max-pod-grace-period: must not be negative")
	}
	if err := f.network.check(); err != nil {
		return err
	}
	f.eviction.MaxPodGracePeriod = time.Duration(f.evictionGrace) * time.Second
	if f.shutdown < 0 || f.critical < 0 {
		return errors.New("--shutdown-grace-period: must not be negative")
	}
	if f.runtime != "" && !slices.Contains(node.Runtimes, f.runtime) {
		return fmt.Errorf("--runtime: %q is not one of: %s", f.runtime, strings.Join(node.Runtimes, ", "))
	}
	for _, server := range f.clusterDNS {
		if _, err := netip.ParseAddr(server); err != nil {
			return fmt.Errorf("--cluster-dns: %q is not an IP address", server)
		}
	}
	return nil
}

// setCount sets the default number of Nodes for --runtime process to 1, since it runs programs on this machine.
func (f *nodeFlags) setCount(fs *pflag.FlagSet) {
	if f.runtime == node.Process && !fs.Changed("nodes") {
		f.count = 1
	}
}

// setDNS sets --cluster-dns to the cluster IP that the Service kube-dns gets, if the Nodes run its DNS servers.
func (f *nodeFlags) setDNS(serviceCIDRs []string) error {
	if f.runtime != node.Process || !f.network.dns || !f.network.proxy || len(f.clusterDNS) > 0 {
		return nil
	}
	ranges, err := serviceranges.Parse(serviceCIDRs)
	if err != nil {
		return fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	f.clusterDNS = []string{serviceranges.DNSIP(ranges).String()}
	return nil
}

// addEndpoint adds the flags of an agent that is a process of its own, with the kubelet's names.
func (f *nodeFlags) addEndpoint(fs *pflag.FlagSet) {
	fs.StringVar(&f.address, "node-ip", "", "address of the Nodes, which the API server connects to; if empty, this "+
		"machine's source address for connections to the API server")
	fs.StringVar(&f.bind, "address", "", "address to serve logs, streams and statistics on; --node-ip if empty")
	fs.BoolVar(&f.bootstrap, "rotate-server-certificates", true, "without --tls-cert-file, request a serving "+
		"certificate with a CertificateSigningRequest for the signer kubernetes.io/kubelet-serving")
	fs.IntVar(&f.port, "port", 0,
		"port to serve them on, over TLS; 0 takes any free one, which the Nodes' status reports")
	fs.StringVar(&f.dir, "root-dir", "/var/lib/coxswain-node",
		"folder for the volumes, logs and state of --runtime process, and for the record of static pods")
	fs.StringSliceVar(&f.volumes, "node-local-root", []string{"/var/lib/coxswain/volumes"},
		"parent folders of the volumes of node-local classes; the agent removes the data of reclaimed volumes only if "+
			"they are directly in one of these folders")
	fs.BoolVar(&f.cleanup, "cleanup", false, "kill the pods that an agent with this --root-dir and --runtime process "+
		"left behind, remove their files, undo the agent's changes to the machine, and exit")
	f.network.addKubeconfig(fs)
	fs.DurationVar(&f.shutdown, "shutdown-grace-period", 0, "on SIGTERM or SIGINT, terminate all pods within this "+
		"time, as when a machine shuts down; with 0 pods keep running")
	fs.DurationVar(&f.critical, "shutdown-grace-period-critical-pods", 0,
		"part of --shutdown-grace-period that is reserved for pods of critical priority, which are terminated last")
}

// names returns the Nodes' names.
func (f *nodeFlags) names() []string {
	return certs.NodeNames(f.prefix, f.count)
}

// agentsFolder is where the agents of a machine publish their folders to each other, so that each agent hides all of
// them from its containers. It belongs to root; /var/lib/coxswain may belong to another user.
const agentsFolder = "/var/lib/coxswain-agents"

// allReserved returns the resources that are not available to pods.
func (f *nodeFlags) allReserved() (corev1.ResourceList, error) {
	all := corev1.ResourceList{}
	for i, flag := range []string{"--kube-reserved", "--system-reserved"} {
		if err := node.AddReserved(all, f.reserved[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
	}
	return all, nil
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
			if f.cleanup {
				return process.Cleanup(f.dir, agentsFolder)
			}
			f.setCount(cmd.Flags())
			f.serving = p.endpoint
			f.hide = slices.Concat(kubeconfig.CredentialFiles(p.kubeconfig),
				kubeconfig.CredentialFiles(f.network.kubeconfig))
			return p.run(cmd.Context(), prometheus.NewRegistry(), f.run)
		},
	}
	p.add(cmd.Flags(), "kubelet", "127.0.0.1:10248")
	f.add(cmd.Flags(), 1)
	f.addEndpoint(cmd.Flags())
	return cmd
}

func (f *nodeFlags) run(ctx context.Context, as identities) error {
	if f.count == 0 {
		<-ctx.Done()
		return nil
	}
	clients, err := f.serving.clientCAs(as.main)
	if err != nil {
		return err
	}
	ln, err := f.listen(as.main.Host)
	if err != nil {
		return err
	}
	if ln != nil {
		defer func() { _ = ln.Close() }()
	}
	tc, err := f.tlsConfig(as)
	if err != nil {
		return err
	}
	own := ln != nil && f.runtime != node.Process && as.serving != nil && f.serving.certFile == "" &&
		hasLoopbackNetwork
	if own {
		tc.GetCertificate = (&certs.NodeCertificates{Issue: as.serving, Name: f.names()[0]}).Get
	}
	reserved, err := f.allReserved()
	if err != nil {
		return err
	}
	if f.runtime == node.Process {
		ownprocess.PreferToKeep(ownprocess.AgentOOMScore)
	}
	o := node.Options{
		Reserved: reserved, Agents: agentsFolder,
		Count: f.count, Prefix: f.prefix, Runtime: f.runtime, StaticPodPath: f.static, DataDir: f.dir, Hide: f.hide,
		VolumeRoots: f.volumes, Identity: as.node,
		Address: f.address, ListenAddress: f.bind, Port: f.port, Listener: ln, OwnAddresses: own,
		ClientCAs: clients, TLS: tc,
		ServerTLSBootstrap: f.bootstrap,
		Metrics:            processMetrics, MaxPodPIDs: max(0, f.pids), AllowedUnsafeSysctls: f.sysctls,
		ClusterDNS: f.clusterDNS, ClusterDomain: f.clusterDomain,
		Eviction: f.eviction, CompleteAfter: f.simulated.completeAfter(), Components: f.components, Log: f.log,
		ShutdownGracePeriod: f.shutdown, ShutdownGracePeriodCriticalPods: f.critical, Ready: f.ready,
		Clock: f.time.clock(), Quiescence: f.time.parts,
	}
	ctx, cancel := context.WithCancel(ctx)
	f.endpoint = ln
	wait, err := f.startNetwork(ctx, as, &o)
	if err != nil {
		cancel()
		return err
	}
	err = node.Run(ctx, as.main, o)
	cancel()
	wait()
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "listen" && op.Addr != nil {
		return listenError("port", op.Addr.String(), err)
	}
	return err
}

// tlsConfig returns the TLS configuration of the agent's endpoint. It has the certificate that the flags name, or one
// from the CA of nodes' serving certificates if that CA is in this process. Without either, the agent makes a
// certificate or requests one.
func (f *nodeFlags) tlsConfig(as identities) (*tls.Config, error) {
	tc := &tls.Config{MinVersion: tls.VersionTLS12}
	if err := f.serving.tls.apply(tc); err != nil {
		return nil, err
	}
	var cert pki.Certificate
	var err error
	switch {
	case f.serving.certFile != "":
		cert, err = f.serving.certificate()
	case as.serving != nil:
		cert, err = as.serving(f.address, f.names()[0])
	}
	if cert != nil {
		tc.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert.Current() }
	}
	return tc, err
}

// listen sets the Nodes' address, if there is none yet, to the one that the API server can connect to. If the API
// server is on this machine, the result is the agent's listener, for this machine only. As the kubelet's, the address
// is then that of the default route's device. Simulated Nodes are loopback addresses, because nothing outside can
// reach them.
func (f *nodeFlags) listen(server string) (net.Listener, error) {
	if f.address != "" {
		return nil, nil
	}
	f.address = addressTowards(server)
	if ip, err := netip.ParseAddr(f.address); err != nil || !ip.IsLoopback() || f.bind != "" {
		return nil, nil
	}
	if host := controlplane.HostAddress(); f.runtime == node.Process && host.Is4() {
		f.address = host.String()
	}
	address := net.JoinHostPort("", strconv.Itoa(f.port))
	ln, err := listener.Local(address)
	if f.anyPort && errors.Is(err, syscall.EADDRINUSE) {
		ln, err = listener.Local(":0")
	}
	if err != nil {
		return nil, listenError("port", address, err)
	}
	return ln, nil
}

// hasLoopbackNetwork reports whether every address in 127.0.0.0/8 is this machine's, as on Linux. Elsewhere 127.0.0.1
// alone is.
const hasLoopbackNetwork = goruntime.GOOS == "linux"

// addressTowards returns this machine's source address for connections to a server, or "" if it is unknown. It sends no
// packets.
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

// run runs a component as a process of its own, and serves its health and metrics.
func (f *processFlags) run(ctx context.Context, metrics prometheus.Gatherer, c component) error {
	as, err := loadIdentities(f.kubeconfig)
	if err != nil {
		return err
	}
	if f.endpoint.address != "" {
		stop, err := f.endpoint.serve(as.main, metrics, f.debug)
		if err != nil {
			return err
		}
		defer stop()
	}
	return c(ctx, as)
}
