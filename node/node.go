// Package node is an agent for one or many Nodes, as the kubelet is for one: it registers them, renews their
// heartbeats, and runs the pods that are bound to them from start to end.
//
// Input: Nodes and pods, from two informers that all nodes of the process share. Output: Node objects and their status,
// Leases, and pod status. In between:
//
//	agent.go      the informers, the two work queues and the workers
//	register.go   a Node object: created or adopted, its status updated        (nodestatus.go: its content)
//	lease.go      the heartbeat
//	address.go    pod CIDRs for nodes and addresses for pods
//	sync.go       one pod: look, step, write the status, finish a deletion
//	hostedpod.go  a pod that the agent has taken on: its state machine, its running containers, its last status
//	actions.go    carries out the actions of the state machine, with contexts and deadlines
//	pull.go       pulls, which run in goroutines of their own
//	host.go       the methods that runtimes may call
//	hostednode.go one of the agent's Nodes
//	server.go     the endpoint for logs, streams, statistics, probes (serverauth.go, serverlogs.go, serverstats.go,
//	              serverfs.go, servermetrics.go, serverprobes.go)
//	configuration.go the configuration of the agent, as the kubelet shows it
//	ownaddress.go addresses of the endpoint, one for each node
//	staticpods.go pods that the agent creates from a folder   (mirrors.go: the record of these pods)
//	reclaim.go    folders of deleted volumes
//	admit.go      whether a bound pod may run on its node
//	reserved.go   resources of a node that are not for pods
//	sysctls.go    kernel parameters that a pod may set
//	resize.go     new resources for a running pod
//	eviction.go   eviction of pods from a node under pressure (pressure.go, evictionconfig.go, observe.go)
//	storage.go    eviction of pods that exceed their limits of disk usage
//	shutdown.go   the graceful shutdown of a node
//	logs.go       the part of a log that a client requests
//
// and its sub-packages:
//
//	podstate/     the state machine of a pod, and its status; it does no I/O and reads no clock
//	runtime/      the interfaces between agent and runtimes: Runtime, Machine, Host
//	simulated/    a runtime that runs no programs
//	process/      a runtime of programs of this machine, on process/sandbox
//	volumes/, environment/, references/, probe/  parts that any runtime of programs needs
//	amount/       bounded arithmetic with numbers from objects
//	stream/       exec, attach and port-forward over WebSocket and SPDY
//
// Everything is level-based: a worker compares a pod with the state that the agent has of it, and takes the steps that
// are due. Later steps are entries in the delaying work queue, which is one heap on the clock, so that a waiting pod
// needs no goroutine. Only a pull has one. A worker waits for the runtime and the API server without holding a lock;
// when a pod has to end, its calls of the runtime are cancelled.
//
// A restarted agent adopts the pods it finds: running containers go on running, with the same address and restart
// counts.
//
// # The simulated runtime
//
// Containers start after Options.StartDelay, are ready at once and run forever or, with the restartPolicy Never or
// OnFailure, for Options.CompleteAfter, whatever their image. Annotations on the pod and the Node change that;
// docs/node.md lists them.
//
// Init containers succeed at once; sidecars run until the pod ends. A container that ended is started again according
// to restartPolicy, with the kubelet's back-off (at once, 10 s, 20 s, … 5 min).
package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
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

// Options configure the nodes of an agent.
type Options struct {
	// Names are the Nodes' names. If there are none, Count nodes are named Prefix0, Prefix1, …; Prefix defaults to
	// "node-" and Count to 1.
	Names  []string
	Count  int
	Prefix string
	// Identity, if not nil, returns the client configuration for all requests of a Node, which then sees and
	// changes only its own objects. Otherwise all Nodes use Run's config.
	Identity func(node string) (*rest.Config, error)
	// Runtime is the container runtime: "simulated", the default, or "process"; see docs/node.md.
	Runtime string
	// DataDir is the folder of the process runtime's files, and of every agent's record of its static pods. A restarted
	// agent needs the same folder. Without one, static pods are created again.
	DataDir string
	// Hide are files and folders of this machine that no container may see, besides DataDir, under any path and in any
	// volume.
	Hide []string
	// Agents is a folder in which the agents of this machine exchange the paths that they hide from containers; "" for
	// none.
	Agents string
	// VolumeRoots are the folders of this machine whose direct subfolders are volumes of node-local folders. When a
	// volume is reclaimed, the agent removes its folder there, and never any other folder.
	VolumeRoots []string
	// StaticPodPath is a folder of manifests; every Node runs a pod for each of them; "" for none.
	StaticPodPath string
	// Components are the parts of the control plane in this process, which the first Node shows as static pods once
	// it is registered.
	Components []Component
	// StartDelay is the time that the simulated runtime takes to start a pod. With 0 a pod goes from Pending to Ready
	// in one status write.
	StartDelay time.Duration
	// CompleteAfter, if not nil, is how long the containers of pods with the restartPolicy Never or OnFailure run in
	// the simulated runtime before they succeed; see simulated.Options. With nil they run until they are stopped.
	CompleteAfter *time.Duration
	// Script, if not nil, changes the scripts of pods in the simulated runtime; see simulated.Options.
	Script func(*corev1.Pod, *simulated.Script)
	// MaxPods is the number of pods that each Node accepts; 0 is 1,000.
	MaxPods int
	// Capacity replaces or adds to each Node's capacity; see DefaultCapacity.
	Capacity corev1.ResourceList
	// Reserved is the part of Capacity that is kept for the machine and the agent.
	Reserved corev1.ResourceList
	// MaxPodPIDs limits the processes and threads of a pod with the process runtime; 0 is no limit.
	MaxPodPIDs int64
	// AllowedUnsafeSysctls are sysctls that pods may set besides the safe ones. A name may end in * as a pattern.
	AllowedUnsafeSysctls []string
	// ClusterDNS are the addresses of the DNS servers of pods with the policy ClusterFirst, with the process runtime.
	// Without any, these pods use the machine's.
	ClusterDNS []string
	// ClusterDomain is the cluster's DNS domain; "" is cluster.local.
	ClusterDomain string
	// Eviction defines when pods are evicted because a Node is under pressure.
	Eviction EvictionOptions
	// ShutdownGracePeriod, if not zero, makes Run end all pods within this time after its ctx has ended, before it
	// returns. ShutdownGracePeriodCriticalPods is the part of it that is kept for pods of critical priority.
	ShutdownGracePeriod             time.Duration
	ShutdownGracePeriodCriticalPods time.Duration
	// OpenRouter opens the network of the process runtime's pods: the router in a network namespace that an earlier
	// agent has left, or a new one if that is nil. The router must call changed after its Problem has changed. A nil
	// OpenRouter opens a network for this machine only, without NetworkPolicies.
	OpenRouter func(namespace *os.File, changed func()) (runtime.Router, error)
	// Address is the InternalIP of the Nodes and the host IP of their pods; "" is 127.0.0.1.
	Address string
	// ListenAddress and Port are where the agent serves logs, streams and statistics to the API server, over TLS. An
	// empty ListenAddress is Address, and Port 0 is any free port. With a negative Port the agent serves nothing.
	ListenAddress string
	Port          int
	// OwnAddresses makes each Node's first InternalIP a loopback address of its own, at which the Listener must listen,
	// too. The Node of a request follows from the address that it is sent to.
	OwnAddresses bool
	// Listener, if not nil, is where the agent serves in place of ListenAddress and Port. Run closes it.
	Listener net.Listener
	// TLS has the endpoint's certificate, minimum version and cipher suites; nil is TLS 1.2. Without a certificate the
	// endpoint has a self-signed one.
	TLS *tls.Config
	// ServerTLSBootstrap makes an agent without a certificate request one with a CertificateSigningRequest.
	ServerTLSBootstrap bool
	// ClientCAs sign the client certificates that authenticate requests; nil accepts none. A token of the
	// cluster authenticates as well. The API server authorizes both.
	ClientCAs *x509.CertPool
	// Metrics are the metrics of the process, which are served at /metrics with those of the Node.
	Metrics []prometheus.Gatherer
	// HeartbeatEvery is the interval of renewals of a Lease; 0 is 10 s. A Lease lasts four intervals.
	HeartbeatEvery time.Duration
	// StatusEvery is the interval of writes of an unchanged node status; 0 is 5 min.
	StatusEvery time.Duration
	// Workers is the number of pods that are worked on at a time; 0 is 16.
	Workers int
	// Quiescence, if not nil, is the group that receives the agent's remaining work.
	Quiescence *quiescence.Group
	// Ready, if not nil, is called once when every Node exists.
	Ready func()
	// Clock is the agent's clock; nil is the real one.
	Clock clock.WithTicker
	// Log is the agent's logger; nil is slog.Default.
	Log *slog.Logger
}

// DefaultCapacity returns the capacity of a simulated Node. No program runs on it, so the figures cost nothing. They
// are large enough that users who scale to a thousand pods meet only limits of their own, and small enough that
// requests in gigabytes and cores can still fill a node.
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

// Runtimes are the names of all runtimes.
var Runtimes = []string{Simulated, Process}

// defaultMaxPods is more than the kubelet's 110, which is about the limit of a real machine: a Deployment of a thousand
// pods should fit on the three nodes of a first start.
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

// Run runs the nodes until ctx ends, and returns nil when all its goroutines have ended. Nodes, pods and Leases stay as
// they are, as when a kubelet is stopped. It returns early only if the options are invalid.
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

// newRuntime returns the runtime that the options select.
func (o *Options) newRuntime(h runtime.Host) (runtime.Runtime, error) {
	if o.Runtime == Process {
		return process.New(h, process.Options{
			DataDir: o.DataDir, Hide: o.Hide, Agents: o.Agents, VolumeRoots: o.VolumeRoots, MaxPodPIDs: o.MaxPodPIDs,
			OpenRouter: o.OpenRouter, Address: o.Address, ClusterDNS: o.ClusterDNS, ClusterDomain: o.ClusterDomain,
			Capacity: o.Capacity, Allocatable: o.allocatable(), Reserved: o.Reserved, Clock: o.Clock, Log: o.Log,
		})
	}
	return simulated.New(simulated.Options{StartDelay: o.StartDelay, CompleteAfter: o.CompleteAfter, Script: o.Script,
		Now: o.Clock.Now}), nil
}
