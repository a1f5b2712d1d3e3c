// Package node is the agent that stands for one or many Nodes, as the kubelet does for one: it registers
// them, keeps their heartbeats, and brings the pods that are bound to them to life and to an end.
//
// What comes in: Nodes and pods, from two informers that all the nodes of the process share. What goes
// out: Node objects and their status, Leases, pod status. In between:
//
//	agent.go      the informers, the two work queues and the workers
//	register.go   a Node object: created or adopted, its status kept fresh     (nodestatus.go: what it says)
//	lease.go      the heartbeat
//	address.go    pod CIDRs for nodes and addresses for pods
//	sync.go       one pod: look, step, write the status, finish a deletion
//	hostedpod.go  a pod that the agent has taken on: its state machine, its running containers, its last status
//	actions.go    carries out the actions of the state machine, with contexts and deadlines
//	pull.go       … of which pulls run in goroutines of their own
//	host.go       what runtimes may ask of the agent
//	hostednode.go one of the Nodes that the agent stands for
//	server.go     the endpoint for logs, streams, statistics (serverauth.go, serverlogs.go, serverstats.go)
//	staticpods.go pods that the agent makes from a folder     (mirrors.go: the record by which it knows them)
//	reclaim.go    folders of volumes that are no more
//	admit.go      whether a pod that was bound to a node may run there
//	reserved.go   what of a node no pod may have
//	sysctls.go    … and which parameters of the kernel it may set
//	resize.go     a running pod gets other resources
//	eviction.go   which pod goes where a node is short of something (pressure.go, evictionconfig.go, observe.go)
//	storage.go    … and which one where it takes more of the disk than it may
//	shutdown.go   the orderly end of a node
//	logs.go       which part of a log a client wants
//
// and the rooms behind it:
//
//	podstate/     the state machine of a pod, and its status; it does no I/O and reads no clock
//	runtime/      the seam to what runs containers: Runtime, Machine, Host
//	simulated/    the runtime in which no program runs
//	process/      the runtime of programs of this machine, on process/sandbox
//	volumes/, environment/, references/, probe/  what a runtime of programs needs
//	amount/       bounded numbers of those in objects
//	stream/       exec, attach and port-forward over WebSocket and SPDY
//
// Everything is level-based: a worker compares a pod with the state that the agent keeps of it and takes the
// steps that are due. Steps that are due later are entries in the delaying work queue, which is one
// heap on the clock, so that a pod that waits costs no goroutine. Only a pull has one. A worker waits for the runtime
// and the API server, but holds no lock meanwhile; when a pod has to end, its calls of the runtime are cancelled.
//
// An agent that is started again takes up the pods it finds: what runs goes on running, with the same
// address and restart counts.
//
// # The simulated runtime
//
// Containers start after Options.StartDelay, are ready at once and run for ever, whatever their image. Annotations on
// the pod and the Node change that: docs/node.md has them all.
//
// Init containers end at once and with success; sidecars run until the pod ends. A container that ended
// is started again as restartPolicy says, with the kubelet's back-off (at once, 10 s, 20 s, … 5 min).
package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
	"github.com/coxswain-dev/coxswain/node/process"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/simulated"
)

// Options say which nodes to be and how.
type Options struct {
	// Names are the Nodes. Where empty, Count nodes are named Prefix0, Prefix1, …; Prefix is "node-"
	// and Count 1 where not given.
	Names  []string
	Count  int
	Prefix string
	// Identity, if not nil, is the client configuration of each Node, as whom it then makes all its
	// requests: a Node that may see and change what is its own only. Otherwise Run's config serves them all.
	Identity func(node string) (*rest.Config, error)
	// Runtime is what runs containers: "simulated", also where empty, or "process", which see docs/node.md.
	Runtime string
	// DataDir is where the process runtime keeps what it has on disk, and every agent its record of the
	// static pods that it has made. An agent that is started again needs the same. Where it is empty, static
	// pods are made anew.
	DataDir string
	// Hide are files and folders of this machine that no container may see, besides DataDir: by no path, and
	// in no volume.
	Hide []string
	// Agents is a folder of this machine in which its agents tell each other what they hide from containers; none where
	// empty.
	Agents string
	// VolumeRoots are the folders of this machine right below which volumes of the class of node-local
	// folders are. Of a volume that is reclaimed the agent removes the folder there, and nothing anywhere
	// else.
	VolumeRoots []string
	// StaticPodPath is a folder of manifests, of each of which every Node runs a pod; none where empty.
	StaticPodPath string
	// StartDelay is how long the simulated runtime takes to start a pod. With 0 a pod goes from Pending to Ready
	// in one status write.
	StartDelay time.Duration
	// Script, if not nil, changes what the containers of a pod do in the simulated runtime; see simulated.Options.
	Script func(*corev1.Pod, *simulated.Script)
	// MaxPods is how many pods each Node takes; 1,000 where zero.
	MaxPods int
	// Capacity replaces or adds to what each Node has; see DefaultCapacity.
	Capacity corev1.ResourceList
	// Reserved is what of the Capacity no pod may have: it is the machine's and the agent's.
	Reserved corev1.ResourceList
	// MaxPodPIDs is how many processes and threads a pod may have with the process runtime; as many as it
	// likes where zero.
	MaxPodPIDs int64
	// AllowedUnsafeSysctls are those that pods may set besides the safe ones, or what their names begin with
	// before a *.
	AllowedUnsafeSysctls []string
	// ClusterDNS are the addresses of the DNS servers of pods with the policy ClusterFirst, with the process runtime.
	// Where there are none, these pods have the machine's.
	ClusterDNS []string
	// ClusterDomain is the domain of the cluster's names; cluster.local where empty.
	ClusterDomain string
	// Eviction says when pods have to go because a Node is short of something.
	Eviction EvictionOptions
	// ShutdownGracePeriod, where it is not zero, has Run end all pods within this time when its ctx ends, before it
	// returns; ShutdownGracePeriodCriticalPods is how much of it is kept for those of critical priority.
	ShutdownGracePeriod             time.Duration
	ShutdownGracePeriodCriticalPods time.Duration
	// OpenRouter opens the network of the process runtime's pods: the router in a network namespace that an earlier
	// agent has left, or a new one where that is nil. The router calls changed when its Problem has changed. A nil
	// function opens one with a network of this machine alone, without NetworkPolicies.
	OpenRouter func(namespace *os.File, changed func()) (runtime.Router, error)
	// Address is the InternalIP of the Nodes and the host IP of their pods; 127.0.0.1 where empty.
	Address string
	// ListenAddress and Port are where the agent serves logs, streams and statistics to the API server, over TLS;
	// Address where empty, and any free port where 0. A negative port serves nothing.
	ListenAddress string
	Port          int
	// TLS is how the agent serves: its certificate, least version and cipher suites; nil is TLS 1.2, and without a
	// certificate it shows one that signs itself.
	TLS *tls.Config
	// ServerTLSBootstrap has an agent without a certificate ask the API server for one, by a CertificateSigningRequest.
	ServerTLSBootstrap bool
	// ClientCAs sign the client certificates that authenticate requests; nil accepts none. A token of the
	// cluster authenticates as well. The API server authorizes both.
	ClientCAs *x509.CertPool
	// Metrics are served at /metrics beside what there is to count of a Node: those of the process.
	Metrics []prometheus.Gatherer
	// HeartbeatEvery is the interval at which Leases are renewed; 10 s where zero. A Lease lasts four of them.
	HeartbeatEvery time.Duration
	// StatusEvery is the interval at which an unchanged node status is written; 5 min where zero.
	StatusEvery time.Duration
	// Workers is how many pods are worked on at a time; 16 where zero.
	Workers int
	// Quiescence, if not nil, gets what the nodes have to do.
	Quiescence *quiescence.Group
	// Ready, if not nil, is called once when every Node exists.
	Ready func()
	// Clock is the agent's time; the real one where nil.
	Clock clock.WithTicker
	// Log is where to log; slog.Default where nil.
	Log *slog.Logger
}

// DefaultCapacity is what a simulated Node has. No program runs on it, so the figures cost nothing; they are
// generous, so that a user who scales to a thousand meets only limits of their own, and small
// enough that requests in gigabytes and cores still fill a node up.
func DefaultCapacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("32"),
		corev1.ResourceMemory:           resource.MustParse("128Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
}

// The names of the runtimes.
const (
	Simulated = "simulated"
	Process   = "process"
)

// Runtimes are all of them.
var Runtimes = []string{Simulated, Process}

// defaultMaxPods is more than the kubelet's 110, which is about what a real machine can bear: a
// Deployment of a thousand should find room on the three nodes of a first start.
const defaultMaxPods = 1000

func (o *Options) complete() error {
	if o.Prefix == "" {
		o.Prefix = "node-"
	}
	if len(o.Names) == 0 {
		for i := range max(o.Count, 1) {
			o.Names = append(o.Names, o.Prefix+strconv.Itoa(i))
		}
	}
	capacity := DefaultCapacity()
	if o.Runtime == Process {
		capacity = process.Capacity()
		o.MaxPods = cmp.Or(o.MaxPods, 110)
	}
	o.MaxPods = cmp.Or(o.MaxPods, defaultMaxPods)
	capacity[corev1.ResourcePods] = *resource.NewQuantity(int64(o.MaxPods), resource.DecimalSI)
	for name, quantity := range o.Capacity {
		capacity[name] = quantity
	}
	o.Capacity = capacity
	if err := o.checkReserved(); err != nil {
		return err
	}
	if o.Address == "" {
		o.Address = "127.0.0.1"
	}
	o.ClusterDomain = cmp.Or(o.ClusterDomain, "cluster.local")
	if o.ListenAddress == "" {
		o.ListenAddress = o.Address
	}
	if o.HeartbeatEvery == 0 {
		o.HeartbeatEvery = 10 * time.Second
	}
	if o.StatusEvery == 0 {
		o.StatusEvery = 5 * time.Minute
	}
	if o.Workers == 0 {
		o.Workers = 16
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Runtime == "" {
		o.Runtime = Simulated
	}
	if !slices.Contains(Runtimes, o.Runtime) {
		return fmt.Errorf("unknown runtime %q, want one of %v", o.Runtime, Runtimes)
	}
	if o.ShutdownGracePeriodCriticalPods > o.ShutdownGracePeriod {
		return errors.New("--shutdown-grace-period-critical-pods: must not be more than --shutdown-grace-period")
	}
	if o.Eviction.Hard == nil {
		o.Eviction.Hard = DefaultEvictionHard(o.Runtime)
	}
	o.Eviction.StorageEvery = cmp.Or(o.Eviction.StorageEvery, evictionEvery)
	o.Eviction.PressureTransitionPeriod = cmp.Or(o.Eviction.PressureTransitionPeriod, 5*time.Minute)
	if _, err := o.Eviction.thresholds(); err != nil {
		return err
	}
	return checkSysctls(o.AllowedUnsafeSysctls)
}

// Run is the nodes until ctx ends, then returns nil when all its goroutines have ended. Nodes, pods and
// Leases stay as they are, as when a kubelet is stopped. It returns early only where the options are wrong.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	if err := o.complete(); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	links, err := connect(config, &o)
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	a, err := newAgent(links, o, o.newRuntime)
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	return a.run(ctx)
}

// newRuntime is the runtime that the options name.
func (o *Options) newRuntime(h runtime.Host) (runtime.Runtime, error) {
	if o.Runtime == Process {
		return process.New(h, process.Options{
			DataDir: o.DataDir, Hide: o.Hide, Agents: o.Agents, VolumeRoots: o.VolumeRoots, MaxPodPIDs: o.MaxPodPIDs,
			OpenRouter: o.OpenRouter, Address: o.Address, ClusterDNS: o.ClusterDNS, ClusterDomain: o.ClusterDomain,
			Capacity: o.Capacity, Allocatable: o.allocatable(), Reserved: o.Reserved, Clock: o.Clock, Log: o.Log,
		})
	}
	return simulated.New(simulated.Options{StartDelay: o.StartDelay, Script: o.Script, Now: o.Clock.Now}), nil
}
