// Package runtime is the seam between the node agent and the programs or simulations that run containers.
//
// A Runtime runs containers. It knows neither restarts nor order nor phases: the agent's state machine decides which
// container runs when. Machine, Admission and Imageless are optional interfaces: a Machine's containers are a load on
// this machine, an Admission refuses pods, and an Imageless runtime has no images to pull. A Host is the agent, as far
// as a runtime needs it; each runtime gets one from its constructor.
//
//	runtime.go   the interfaces, and the values that cross them
//	image.go     pulling images: requests, results and the classes of errors
//	pod.go       facts about a pod that agent and runtimes share: its key, grace period, containers, IDs
//
// Of this module, the package imports only node/amount, node/stream and network/router. node/simulated and node/process
// implement it.
package runtime

import (
	"context"
	"net"
	"net/netip"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/network/router"
	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/stream"
)

// Runtime runs containers. Several workers call it at a time, but never two for the same pod, except that Pull, Dial,
// OpenLog and Usage are safe for concurrent use.
//
// A method that may wait has a context. It returns soon after the context ends: when the pod has to end, when the agent
// stops, or at a deadline that the agent sets. Methods without a context answer from memory and never wait.
type Runtime interface {
	// Version returns a Node's containerRuntimeVersion: "name://version".
	Version() string
	// Delay returns how long after its admission a pod's first container may start.
	Delay(pod *corev1.Pod) time.Duration
	// SetUp prepares the sandbox that the containers of a pod share, before the first of them starts, and brings it up
	// to date when it is called again. The agent offers addresses; the pod has the addresses of the Sandbox. A
	// *SetUpError names its Event.
	SetUp(ctx context.Context, pod *corev1.Pod, addresses []string) (Sandbox, error)
	// TearDown ends all containers of a pod. Its logs stay until Forget, which leaves nothing. Both may be repeated.
	TearDown(ctx context.Context, pod *corev1.Pod) error
	Forget(ctx context.Context, uid types.UID) error
	// Sweep forgets pods of an earlier agent for which known is false.
	Sweep(ctx context.Context, known func(types.UID) bool)
	// Pull makes the image of a container available. It may take minutes: the agent calls it in a goroutine of the
	// container, unless the runtime is Imageless. A *PullError has the class of a failure; other errors count as
	// ErrImagePull. A runtime that downloads bounds how many downloads run at a time.
	Pull(ctx context.Context, r PullRequest) (Image, error)
	// Start runs a container whose image was pulled. run counts its runs, from 0. After an error, Start may be called
	// again for the same run.
	Start(ctx context.Context, pod *corev1.Pod, c *corev1.Container, run int32, now time.Time) (Container, error)
	// Adopt takes over a container that an earlier agent started, described by its status. An error means that the
	// container is lost, unless ctx has ended.
	Adopt(ctx context.Context, pod *corev1.Pod, c *corev1.Container, status *corev1.ContainerStatus) (Container, error)
	// Dial connects to a port of a pod, as from within.
	Dial(ctx context.Context, pod *corev1.Pod, port uint16) (net.Conn, error)
	// OpenLog opens the output of a run of a container, at its beginning.
	OpenLog(pod *corev1.Pod, run *LogRun) (LogReader, error)
	// Usage returns the present usage of a container that has run since started.
	Usage(ctx context.Context, pod *corev1.Pod, c *corev1.Container, started, now time.Time) (Usage, error)
	// Close ends the runtime's own goroutines. Containers go on running.
	Close()
}

// Sandbox is the environment that the containers of a pod share.
type Sandbox struct {
	// Addresses are the pod's IPs, the primary one first: one for each IP family.
	Addresses []string
	// Again is the delay until SetUp should be called again; zero is never.
	Again time.Duration
}

// Machine is what a runtime knows, besides, whose containers are programs of this machine. All methods are safe for
// concurrent use.
type Machine interface {
	// Describe fills in what machine and system this is.
	Describe(*corev1.NodeSystemInfo)
	// Connect puts a node on the network, as soon as it is known where the addresses of its pods come from. It may be
	// repeated. A failure is among the Conditions.
	Connect(node string)
	// Conditions are what the runtime reports of a node.
	Conditions(node string) []corev1.NodeCondition
	// Load is what all of the machine takes.
	Load(now time.Time) (Usage, error)
	// Resources are what the machine has, and what of it is free.
	Resources() Resources
	// DiskUse is what a pod takes of the machine's disk.
	DiskUse(pod types.UID) (bytes, inodes int64)
	// LocalStorage is what the parts of a pod take of the machine's disk that have limits.
	LocalStorage(pod *corev1.Pod) LocalStorage
}

// LocalStorage is in bytes on the disk: of the files and logs of containers, and of volumes of the kind emptyDir, by
// their names, but those in memory.
type LocalStorage struct{ Containers, Volumes map[string]int64 }

// Admission is what a runtime adds that does not run every pod.
type Admission interface {
	// Unsupported returns what of a pod's spec the runtime cannot honour, for its status and Event; "" if nothing. Such
	// a pod is refused: it must not run without what it asks for.
	Unsupported(pod *corev1.Pod) string
}

// Router is the network of the pods of this machine: network/router has one. Its methods are safe for concurrent use.
type Router interface {
	// AddNode gives a node its subnets. The device is the name of the node's on this machine.
	AddNode(device string, subnets ...netip.Prefix) error
	// Protect returns when a new pod's NetworkPolicies are in force at its addresses; before that it is not connected.
	Protect(ctx context.Context, pod *corev1.Pod, addresses ...netip.Addr) error
	// Problem is why new pods are not connected; nil where they are.
	Problem() error
	// Conditions are what else the network reports of each of its nodes.
	Conditions() []corev1.NodeCondition
	// ConnectPod connects the network namespace of a pod.
	ConnectPod(pod *os.File, addresses ...netip.Addr) error
	// ServeHostPorts has ports of the machine lead to a pod, and no others than these.
	ServeHostPorts(pod netip.Addr, ports []router.HostPort) error
	// Namespace is the router's own, which is open until Close. It is there as long as any process has it open.
	Namespace() *os.File
	Close()
}

// Resources are what a node has, of what its pods share. A resource of which there is nothing in all is not known.
type Resources struct{ Memory, Disk, Inodes, PIDs Supply }

// Supply is how much there is of a resource, in all and free.
type Supply struct{ Capacity, Available int64 }

// Host is what a runtime may ask of the agent that it runs containers for. No method blocks, and
// all are safe for concurrent use.
type Host interface {
	// Event records an Event about a pod; nodeEvent one about a Node.
	Event(pod *corev1.Pod, kind, reason, message string)
	NodeEvent(node, kind, reason, message string)
	// Wake has a pod looked at because one of its containers has changed.
	Wake(PodKey)
	// Refresh has SetUp called again for a pod because what it was made from has changed.
	Refresh(PodKey)
	// NodeChanged has a Node's status reported because the runtime's conditions have changed.
	NodeChanged(node string)
	// Client is the API, with the rights of a node.
	Client(node string) kubernetes.Interface
	// Subnet is where the addresses of a node's pods come from; the zero Prefix while that is not known.
	Subnet(node string) netip.Prefix
}

// A pod is set up again RefreshEvery after a failure, or where a runtime is not notified of what its volumes are made
// from. A change that is reported leads to it at once, but no sooner than RefreshPause after the last time.
const (
	RefreshEvery = time.Minute
	RefreshPause = time.Second
)

// Container is one run of a container. All methods are safe for concurrent use.
type Container interface {
	// ID returns a unique ID: "runtime://...".
	ID() string
	// State returns the present state, from memory.
	State(now time.Time) State
	// Stop asks the container to end within grace, and returns at once. State has the Exit when it has ended. A later
	// call with less grace may shorten it.
	Stop(now time.Time, grace time.Duration)
	// Resize applies the resources of a spec while the container runs.
	Resize(ctx context.Context, spec *corev1.Container) error
	// Exec runs a command in the container until it ends or ctx does; a *stream.ExitError has the exit code.
	Exec(ctx context.Context, argv []string, c *stream.Command) error
	// Attach joins the container's own streams until it ends or ctx does.
	Attach(ctx context.Context, c *stream.Command) error
}

// State is the state of one run of a container.
type State struct {
	Ready bool
	// Starting is true until a startup probe and a postStart hook have succeeded.
	Starting bool
	// Exit is nil while it runs.
	Exit *Exit
	// Next is when the state will change by itself; zero where that is not known.
	Next time.Time
}

// Exit is how a container ended.
type Exit struct {
	Code int32
	At   time.Time
	// Reason is said in place of Completed or Error, and message is the container's own.
	Reason, Message string
}

// SetUpError is why a pod cannot be prepared, and the reason of the Event that reports it.
type SetUpError struct {
	Reason string
	Err    error
}

func (e *SetUpError) Error() string { return e.Err.Error() }
func (e *SetUpError) Unwrap() error { return e.Err }

// ConfigError is why a container cannot be made from what the API has: the kubelet's CreateContainerConfigError.
type ConfigError struct{ Err error }

func (e ConfigError) Error() string { return e.Err.Error() }
func (e ConfigError) Unwrap() error { return e.Err }

// StartError is why a container's own command did not start. It counts as a run that failed: the kubelet's StartError.
type StartError struct{ Err error }

func (e StartError) Error() string { return e.Err.Error() }
func (e StartError) Unwrap() error { return e.Err }

// Usage is what something takes of a machine.
type Usage struct {
	CPU        float64 // cores, lately
	CPUSeconds float64 // since its start
	Memory     int64   // bytes of its working set
	Disk       int64   // bytes; the process runtime has those of whole pods only
	PIDs       int64   // processes and threads
}

func (u *Usage) Add(o Usage) {
	u.CPU += o.CPU
	u.CPUSeconds += o.CPUSeconds
	u.Memory = amount.Plus(u.Memory, o.Memory)
	u.Disk = amount.Plus(u.Disk, o.Disk)
	u.PIDs = amount.Plus(u.PIDs, o.PIDs)
}

// LogRun identifies the run whose log is read. Restarts count from 0.
type LogRun struct {
	Container string
	Run       int32
	Started   time.Time
	Ended     func() (at time.Time, ended bool) // asked again while the log is followed
}

// LogReader reads a log record by record. It is not safe for concurrent use.
type LogReader interface {
	// Next is the next record, and io.EOF where there is none yet. The text is valid until the next call.
	Next() (LogRecord, error)
	Close() error
}

// LogRecord is a line, or the part of one that was written when there was enough of it.
type LogRecord struct {
	At      time.Time
	Text    []byte
	Stream  string // "stdout" or "stderr"
	Partial bool   // more of the line follows
}
