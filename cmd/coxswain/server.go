package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/budget"
	"github.com/coxswain-dev/coxswain/apiserver/controlplane"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/apiserver/servicealloc"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/authzflags"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/listener"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/ownprocess"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/serviceranges"
	"github.com/coxswain-dev/coxswain/internal/zpages"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/etcd"
	"github.com/coxswain-dev/coxswain/storage/memory"
)

// serverFlags are the API server's, alone or in `coxswain up`.
type serverFlags struct {
	flags          *pflag.FlagSet
	dataDir        string // "" keeps everything in memory
	bindAddress    string
	securePort     int
	tlsSANs        []string
	tlsCertFile    string
	tlsKeyFile     string
	tls            tlsFlags
	profiling      bool
	eventTTL       time.Duration
	requestTimeout time.Duration
	shutdown       shutdownFlags
	serviceCIDRs   []string
	nodePorts      utilnet.PortRange
	advertise      net.IP
	advertiseLater bool // once the network of the pods of this process is open
	kubelet        kubeletFlags
	etcd           etcd.ExternalOptions
	encryption     encryptionFlags

	admission       admission.Options
	admissionConfig string
	authn           authnFlags
	limits          limitFlags
	audit           audit.Options

	authorization authzflags.Flags
	// components, if not nil, writes the kubeconfigs of components that are not in this process.
	components func(*running) error
	// debug has additional handlers of components in this process.
	debug map[string]http.Handler
	// clock is "real" or "manual"; setTime derives time from it.
	clock string
	time  timing
	// metrics has the metrics of components in this process.
	metrics []prometheus.Gatherer
	// checks has additional checks of /readyz.
	checks []apiserver.ReadyCheck
	// peers has the health endpoints of the other components.
	peers map[string]string
	// trusted, if not nil, has certificates that components in this process trust besides the server's CA.
	trusted []byte

	historyRetention   time.Duration
	compactionInterval time.Duration
	defragInterval     time.Duration
	quotaBytes         int64
}

func (f *serverFlags) add(fs *pflag.FlagSet) {
	f.flags = fs
	fs.StringVar(&f.dataDir, "data-dir", "./.coxswain", "folder for etcd's data, certificates and kubeconfigs")
	fs.StringVar(&f.bindAddress, "bind-address", "127.0.0.1", "IP address to serve on")
	fs.IntVar(&f.securePort, "secure-port", 6443, "port to serve HTTPS on; 0 takes any free one")
	fs.StringSliceVar(&f.tlsSANs, "tls-san", nil,
		"further names and addresses in the server's certificate; kubeconfigs name the first")
	fs.StringVar(&f.tlsCertFile, "tls-cert-file", "", "server certificate to use instead of one from our own CA")
	fs.StringVar(&f.tlsKeyFile, "tls-private-key-file", "", "key of --tls-cert-file")
	f.tls.add(fs)
	fs.BoolVar(&f.profiling, "profiling", true, "serve profiles at /debug/pprof/ to authorized users")
	fs.DurationVar(&f.eventTTL, "event-ttl", apiserver.DefaultEventTTL, "how long Events are kept")
	fs.DurationVar(&f.requestTimeout, "request-timeout", apiserver.DefaultRequestTimeout,
		"how long a request other than a watch may take")
	f.shutdown.add(fs)
	fs.StringSliceVar(&f.serviceCIDRs, "service-cluster-ip-range", []string{"10.96.0.0/16"},
		"CIDRs of the cluster IPs of Services: one, or one of each IP family")
	f.nodePorts = servicealloc.DefaultNodePorts
	fs.Var(&f.nodePorts, "service-node-port-range",
		"range of the node ports of Services, both ends included")
	fs.IPVar(&f.advertise, "advertise-address", nil, "IP address that the Service kubernetes points to; by "+
		"default --bind-address or, if that is loopback or every address, one of this machine")
	f.kubelet.add(fs)
	fs.StringSliceVar(&f.admission.Enable, "enable-admission-plugins", nil, "admission plugins to run besides the "+
		"default ones, in their order: "+pluginNames(false))
	fs.StringSliceVar(&f.admission.Disable, "disable-admission-plugins", nil, "default admission plugins not to run: "+
		pluginNames(true))
	fs.StringVar(&f.admissionConfig, "admission-control-config-file", "",
		"AdmissionConfiguration of the plugins that have a configuration")
	fs.Int64Var(&f.admission.NotReadySeconds, "default-not-ready-toleration-seconds",
		admission.DefaultTolerationSeconds,
		"how long pods without a toleration of their own stay on a node that is not ready")
	fs.Int64Var(&f.admission.UnreachableSeconds, "default-unreachable-toleration-seconds",
		admission.DefaultTolerationSeconds,
		"how long pods without a toleration of their own stay on a node that is not reachable")
	f.authn.add(fs)
	f.authorization.Add(fs)
	f.limits.add(fs)
	f.audit.AddFlags(fs)
	f.addEtcd(fs)
	f.encryption.add(fs)
	fs.DurationVar(&f.historyRetention, "history-retention", storage.DefaultHistoryRetention,
		"how far back watches and lists can read the past; --etcd-compaction-interval at least")
	fs.DurationVar(&f.compactionInterval, "etcd-compaction-interval", storage.DefaultCompactionInterval,
		"how often etcd's history before --history-retention is compacted, and how long a continue token is valid; "+
			"with 0, history is never compacted and tokens never expire")
	fs.DurationVar(&f.defragInterval, "etcd-defrag-interval", 0,
		"how often the embedded etcd is defragmented, if it has enough free space; 0 never does")
	fs.Int64Var(&f.quotaBytes, "quota-backend-bytes", 0,
		"reject writes when the embedded etcd has this size; 0 is 2 GiB")
}

// pluginNames lists the admission plugins that run by default, or the others.
func pluginNames(byDefault bool) string {
	var names []string
	for _, r := range admission.Table {
		if r.Default == byDefault {
			names = append(names, r.Name)
		}
	}
	return strings.Join(names, ", ")
}

// addEtcd adds the flags for the connection to etcd.
func (f *serverFlags) addEtcd(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.etcd.Servers, "etcd-servers", nil,
		"etcd servers, URLs separated by commas; none embeds etcd in --data-dir")
	fs.StringVar(&f.etcd.CAFile, "etcd-cafile", "", "CA of the etcd servers' certificates")
	fs.StringVar(&f.etcd.CertFile, "etcd-certfile", "", "client certificate for etcd")
	fs.StringVar(&f.etcd.KeyFile, "etcd-keyfile", "", "key of --etcd-certfile")
	fs.StringVar(&f.etcd.Prefix, "etcd-prefix", "/registry", "prefix of all keys in etcd")
}

func newAPIServer() *cobra.Command {
	f, n := &serverFlags{}, &nodeFlags{}
	cmd := &cobra.Command{
		Use:   "apiserver",
		Short: "Run the API server, with an embedded etcd or, with --etcd-servers, on an etcd cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			started := time.Now()
			if err := n.check(); err != nil {
				return err
			}
			if err := f.checkPeers(); err != nil {
				return err
			}
			f.components = func(s *running) error { return s.writeComponents(n) }
			ownprocess.PreferToKeep(ownprocess.APIServerOOMScore)
			return runServer(cmd.Context(), f, func(_ context.Context, s *running) error {
				b := banner{running: s, started: started, served: time.Now(), commands: []string{"get namespaces"}}
				b.show(cmd.OutOrStdout(), "")
				return nil
			})
		},
	}
	f.add(cmd.Flags())
	f.addPeers(cmd.Flags())
	n.addNames(cmd.Flags(), 3, "number of Nodes that node.kubeconfig has identities for")
	return cmd
}

// running is an API server that accepts requests.
type running struct {
	url string
	dir string // "" if it has no files
	// inMemory reports that objects are stored in memory, even if credentials are on disk.
	inMemory bool
	own      *certs.Authorities
	// roots has the certificates that clients verify the server with.
	roots []byte
	// pods serves the pods of this process, with serverFlags.advertiseLater.
	pods *podEndpoint
}

// runServer starts everything that the API server needs, and calls ready once the server accepts requests. When ctx has
// ended and ready has returned, it stops everything in reverse order.
func runServer(ctx context.Context, f *serverFlags, ready func(context.Context, *running) error) error {
	if err := errors.Join(f.encryption.check(), f.shutdown.check()); err != nil {
		return err
	}
	budget.LimitProcess()
	if f.dataDir != "" {
		unlock, err := datadir.Lock(f.dataDir)
		if err != nil {
			return err
		}
		defer unlock()
	}
	// Clients that connect during the start wait in the listener's queue and are served once the server is up.
	ln, err := f.listen()
	if err != nil {
		return err
	}
	defer ln.Close()
	backend, err := f.openEtcd(ctx)
	if err != nil {
		return err
	}
	if f.embedded() {
		f.metrics = append(f.metrics, etcd.EmbeddedMetrics())
	}
	backend, keys, err := f.encrypt(ctx, backend)
	if err != nil {
		return err
	}
	defer func() {
		if err := backend.Close(); err != nil {
			slog.Warn("failed to close etcd", "err", err)
		}
	}()
	store, err := storage.Open(ctx, backend, f.storeOptions())
	if err != nil {
		return err
	}
	defer store.Close()
	if keys != nil {
		defer followKeys(keys, store)()
	}
	if f.embedded() {
		stop, err := serveSnapshots(ctx, f.dataDir, store)
		if err != nil {
			slog.Warn("cannot take snapshots while the server runs", "err", err)
		} else {
			defer stop()
		}
	}
	return f.serve(ctx, ln, store, ready)
}

func (f *serverFlags) serve(ctx context.Context, ln *listener.Group, store *storage.Store,
	ready func(context.Context, *running) error) error {
	own, err := certs.OpenAuthorities(f.dataDir)
	if err != nil {
		return err
	}
	if f.admissionConfig != "" {
		if f.admission.Config, err = admission.ReadConfig(f.admissionConfig); err != nil {
			return err
		}
	}
	cert, err := f.serverCertificate(own.Cluster)
	if err != nil {
		return err
	}
	tc := apiserver.TLSConfig(cert)
	if err := f.tls.apply(tc); err != nil {
		return err
	}
	authorization, err := f.authorization.Options()
	if err != nil {
		return err
	}
	authentication, err := f.authn.options(own, authorization.Configuration.Types())
	if err != nil {
		return err
	}
	cidrs, err := f.serviceRanges()
	if err != nil {
		return err
	}
	kubelet, err := f.kubelet.options(own)
	if err != nil {
		return err
	}
	advertise, _ := netip.AddrFromSlice(f.advertise) // not valid if it is not set
	proxyClient, err := f.authn.frontProxy.certificate(own)
	if err != nil {
		return err
	}
	auditor, err := audit.Open(f.audit, slog.Default())
	if err != nil {
		return err
	}
	defer func() {
		if err := auditor.Close(); err != nil {
			slog.Error("failed to close the audit log", "err", err)
		}
	}()
	server, err := apiserver.New(ctx, apiserver.Options{
		Store: store, Registry: api.NewRegistry(append(builtin.Kinds(), builtin.Metrics()...)...),
		Authentication: authentication, ProxyClient: proxyClient,
		EventTTL: f.eventTTL, RequestTimeout: f.requestTimeout,
		ShutdownDelay: f.shutdown.delay, SendRetryAfter: f.shutdown.retryAfter, GoawayChance: f.shutdown.goaway,
		Kubelet:      kubelet,
		ServiceCIDRs: cidrs, NodePorts: f.nodePorts, AdvertiseAddress: advertise.Unmap(),
		AdvertiseLater: f.advertiseLater,
		Admission:      f.admission,
		Authorization:  authorization,
		Audit:          auditor,
		Limits:         f.limits.limits(), Debug: f.debug, Metrics: f.metrics, Components: f.peers,
		ReadyChecks: f.checks, NoProfiling: !f.profiling, Flags: zpages.Flags(f.flags),
		Clock: f.time.clock(),
	})
	if err != nil {
		return err
	}
	defer f.time.rest(server)()
	r := &running{url: f.url(ln.Addr()), dir: f.dataDir, inMemory: f.time.manual != nil, own: own,
		roots: slices.Concat(own.Cluster.PEM(), f.trusted),
		pods:  &podEndpoint{server: server, listeners: ln}}
	r.pods.cert, _ = cert.(*certs.HostsCertificate)
	if r.dir != "" {
		if err := f.writeKubeconfigs(r); err != nil {
			return err
		}
	}
	// The server stops after ready has returned, so that the components that ready runs can send their last requests.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(serving, ln, tc) }()
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- ready(work, r) }()
	select {
	case err = <-ended: // the server failed: the components that ready runs cannot continue
		cancel()
		return errors.Join(err, <-done)
	case err = <-done:
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case err := <-ended:
			return err
		}
	}
	stop()
	return errors.Join(err, <-ended)
}

// serviceRanges returns the ranges of cluster IPs, or an error if they cannot work.
func (f *serverFlags) serviceRanges() ([]netip.Prefix, error) {
	cidrs, err := serviceranges.Parse(f.serviceCIDRs)
	if err != nil {
		return nil, err
	}
	advertise, _ := netip.AddrFromSlice(f.advertise)
	return cidrs, serviceranges.Check(cidrs, advertise.Unmap())
}

// embedded reports whether etcd runs in this process.
func (f *serverFlags) embedded() bool {
	return len(f.etcd.Servers) == 0 && f.dataDir != "" && f.time.manual == nil
}

func (f *serverFlags) openEtcd(ctx context.Context) (storage.Backend, error) {
	if len(f.etcd.Servers) > 0 {
		return etcd.DialExternal(f.etcd)
	}
	if f.dataDir == "" || f.time.manual != nil {
		return memory.New(memory.Options{Clock: f.time.clock(), QuotaBytes: f.quotaBytes}), nil
	}
	return etcd.StartEmbedded(ctx, etcd.EmbeddedOptions{
		Dir: filepath.Join(f.dataDir, "etcd"), Prefix: f.etcd.Prefix, QuotaBytes: f.quotaBytes,
	})
}

// recallShare limits how much of etcd's history is read after a start, to 1/recallShare of the process's memory.
// Reading takes several times the memory of the history.
const recallShare = 8

func (f *serverFlags) storeOptions() storage.Options {
	o := storage.Options{HistoryRetention: f.historyRetention, CompactionInterval: f.compactionInterval,
		BackfillBytes: budget.ProcessLimit() / recallShare}
	if o.CompactionInterval == 0 {
		o.CompactionInterval = -1
	}
	if len(f.etcd.Servers) == 0 { // an external etcd is defragmented by its administrators
		o.DefragmentInterval = f.defragInterval
	}
	return o
}

// serverCertificate returns the certificate that the flags name, or one from our own CA.
func (f *serverFlags) serverCertificate(ca *pki.CA) (pki.Certificate, error) {
	if f.tlsCertFile != "" {
		cert, err := pki.CertificateFiles(slog.Default(), f.tlsCertFile, f.tlsKeyFile)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert-file: %w", err)
		}
		return cert, nil
	}
	return certs.NewHostsCertificate(ca, f.certificateHosts()...)
}

// certificateHosts returns the names and addresses in a server certificate from our own CA.
func (f *serverFlags) certificateHosts() []string {
	cidrs, _ := serviceranges.Parse(f.serviceCIDRs) // serve returns the error
	hosts := append(certs.ServerHosts(cidrs), f.tlsSANs...)
	ip := net.ParseIP(f.bindAddress)
	if ip != nil && !ip.IsUnspecified() {
		hosts = append(hosts, f.bindAddress)
	}
	switch endpoint := controlplane.HostAddress(); {
	case f.advertise != nil:
		hosts = append(hosts, f.advertise.String())
	case ip != nil && (ip.IsUnspecified() || ip.IsLoopback()) && endpoint.IsValid():
		hosts = append(hosts, endpoint.String())
	}
	if host, err := os.Hostname(); err == nil {
		hosts = append(hosts, host)
	}
	return hosts
}

// url returns the server's address for clients.
func (f *serverFlags) url(addr net.Addr) string {
	_, port, _ := net.SplitHostPort(addr.String()) // a listener's address always has a port
	host := f.bindAddress
	switch ip := net.ParseIP(host); {
	case len(f.tlsSANs) > 0:
		host = f.tlsSANs[0]
	case ip != nil && ip.IsUnspecified():
		host = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(host, port)
}

func (f *serverFlags) writeKubeconfigs(r *running) error {
	if err := r.writeKubeconfig("admin", certs.AdminIdentity); err != nil {
		return err
	}
	if err := r.writeKubeconfig("super-admin", certs.SuperAdminIdentity); err != nil || f.components == nil {
		return err
	}
	return f.components(r)
}
