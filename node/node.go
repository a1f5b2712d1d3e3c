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
//	pod.go        the state machine of a pod; it does no I/O and reads no clock
//	status.go     the PodStatus that says what the state machine has come to
//	runtime.go    the seam to what runs containers
//	simulated.go  the runtime in which no program runs
//
// Everything is level-based: a worker compares a pod with what the agent knows of it and takes the
// steps that are due. Steps that are due later are entries in the delaying work queue, which is one
// heap on the clock, so that a pod that waits costs no goroutine.
//
// An agent that is started again takes up the pods it finds: what runs goes on running, with the same
// address and restart counts.
//
// # The simulated runtime
//
// Containers start after Options.StartDelay, are ready at once and run for ever, whatever their image. Annotations on
// the pod change that; durations are Go's ("1.5s"):
//
//	sim.coxswain.dev/ready-after       how long after its start a container becomes ready
//	sim.coxswain.dev/run-for           how long the containers run before they end by themselves
//	sim.coxswain.dev/exit-code         with what code they end (0); without run-for they end at once
//	sim.coxswain.dev/image-pull-error  the message with which pulling the images fails while it is there
//
// Init containers end at once and with success; sidecars run until the pod ends. A container that ended
// is started again as restartPolicy says, with the kubelet's back-off (at once, 10 s, 20 s, … 5 min).
package node

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
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
	// Runtime is what runs containers: "simulated", also where empty.
	Runtime string
	// StartDelay is how long the simulated runtime takes to start a pod. With 0 a pod goes from Pending to Ready
	// in one status write.
	StartDelay time.Duration
	// MaxPods is how many pods each Node takes; 1,000 where zero.
	MaxPods int
	// Capacity replaces or adds to what each Node has; see DefaultCapacity.
	Capacity corev1.ResourceList
	// Address is the InternalIP of the Nodes and the host IP of their pods; 127.0.0.1 where empty.
	Address string
	// HeartbeatEvery is the interval at which Leases are renewed; 10 s where zero. A Lease lasts four of them.
	HeartbeatEvery time.Duration
	// StatusEvery is the interval at which an unchanged node status is written; 5 min where zero.
	StatusEvery time.Duration
	// Workers is how many pods are worked on at a time; 16 where zero.
	Workers int
	// Ready, if not nil, is called once when every Node exists.
	Ready func()
	// Clock is the agent's time; the real one where nil.
	Clock clock.WithTicker
	// Log is where to log; slog.Default where nil.
	Log *slog.Logger
}

// DefaultCapacity is what a simulated Node has. No program runs on it, so the figures cost nothing; they are
// generous, so that a user who scales to a thousand meets the limits that he sets himself, and small
// enough that requests in gigabytes and cores still fill a node up.
func DefaultCapacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("32"),
		corev1.ResourceMemory:           resource.MustParse("128Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
}

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
	if o.MaxPods == 0 {
		o.MaxPods = defaultMaxPods
	}
	capacity := DefaultCapacity()
	capacity[corev1.ResourcePods] = *resource.NewQuantity(int64(o.MaxPods), resource.DecimalSI)
	for name, quantity := range o.Capacity {
		capacity[name] = quantity
	}
	o.Capacity = capacity
	if o.Address == "" {
		o.Address = "127.0.0.1"
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
	if o.Runtime != "" && o.Runtime != "simulated" {
		return fmt.Errorf("unknown runtime %q, want simulated", o.Runtime)
	}
	return nil
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
	return newAgent(links, o, &simulated{startDelay: o.StartDelay}).run(ctx)
}
