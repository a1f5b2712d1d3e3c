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
	// TearDown ends all containers of a pod. Its logs stay until Forget. It may be repeated.
	TearDown(ctx context.Context, pod *corev1.Pod) error
	// Forget removes everything that a pod has left. It may be repeated.
	Forget(ctx context.Context, uid types.UID) error
	// Sweep forgets the pods of an earlier agent that are not known.
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
	// Dial connects to a port of a pod, as if from within the pod.
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
	// Renewal is the moment on the wall clock at which SetUp should be called again, because something in the sandbox
	// expires, such as a token; zero is never.
	Renewal time.Time
}

// Machine is implemented by runtimes that run containers as programs of this machine. All methods are safe for
// concurrent use.
type Machine interface {
	// Describe fills in the machine's hardware and system.
	Describe(*corev1.NodeSystemInfo)
	// Connect puts a node on the network, as soon as its pod subnet is known. It may be repeated. A failure is reported
	// by Conditions.
	Connect(node string)
	// Conditions returns the conditions that the runtime reports for a node.
	Conditions(node string) []corev1.NodeCondition
	// Load returns the usage of the whole machine.
	Load(now time.Time) (Usage, error)
	// Resources returns the machine's resources, total and free.
	Resources() Resources
	// DiskUse returns the disk usage of a pod.
	DiskUse(pod types.UID) (bytes, inodes int64)
	// LocalStorage returns the disk usage of the parts of a pod that have limits of their own.
	LocalStorage(pod *corev1.Pod) LocalStorage
}

// LocalStorage has bytes on the disk: for each container its files and logs, and for each emptyDir volume that is not
// in memory, by name.
type LocalStorage struct{ Containers, Volumes map[string]int64 }

// Admission is implemented by runtimes that cannot run every pod.
type Admission interface {
	// Unsupported describes the part of a pod's spec that the runtime cannot honour, for the pod's status and Event; ""
	// if there is none. Such a pod is rejected: it must not run with less than it asks for.
	Unsupported(pod *corev1.Pod) string
}

// Router is the network of this machine's pods, built on network/router. Its methods are safe for concurrent use.
type Router interface {
	// AddNode assigns subnets to a node. device is the name of the node's network device on this machine.
	AddNode(device string, subnets ...netip.Prefix) error
	// Protect returns once a new pod's NetworkPolicies are in force at its addresses. The pod is connected only then.
	Protect(ctx context.Context, pod *corev1.Pod, addresses ...netip.Addr) error
	// Problem returns the reason why new pods cannot be connected; nil if they can.
	Problem() error
	// Conditions returns further conditions that the network reports for each of its nodes.
	Conditions() []corev1.NodeCondition
	// ConnectPod connects the network namespace of a pod.
	ConnectPod(pod *os.File, addresses ...netip.Addr) error
	// ServeHostPorts replaces the machine's ports that lead to a pod.
	ServeHostPorts(pod netip.Addr, ports []router.HostPort) error
	// Namespace returns the router's network namespace. The file is open until Close; the namespace exists as long as
	// any process has it open.
	Namespace() *os.File
	Close()
}

// Resources are the resources that a node's pods share. A resource with a Capacity of zero is unknown.
type Resources struct{ Memory, Disk, Inodes, PIDs Supply }

// Supply is the amount of a resource, total and free.
type Supply struct{ Capacity, Available int64 }

// Host is the part of the agent that a runtime may call. No method blocks, and all are safe for concurrent use.
type Host interface {
	// Event records an Event about a pod.
	Event(pod *corev1.Pod, kind, reason, message string)
	// NodeEvent records an Event about a Node.
	NodeEvent(node, kind, reason, message string)
	// Wake makes the agent sync a pod because one of its containers has changed.
	Wake(PodKey)
	// Refresh makes the agent call SetUp again for a pod because the sources of its volumes have changed.
	Refresh(PodKey)
	// NodeChanged makes the agent report a Node's status because the runtime's conditions have changed.
	NodeChanged(node string)
	// Client returns a client of the API with the rights of the node.
	Client(node string) kubernetes.Interface
	// Subnet returns the subnet of a node's pods; the zero Prefix while it is unknown.
	Subnet(node string) netip.Prefix
}

// A pod is set up again RefreshEvery after a failure, or if its runtime is not notified of changes in the sources of
// its volumes. A reported change leads to it at once, except that RefreshPause must have passed since the last time.
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
	// Stop asks the container to end within grace, and returns at once. State has the Exit once it has ended. A later
	// call with a shorter grace may shorten the wait.
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
	// Exit is nil while the container runs.
	Exit *Exit
	// Next is when the state will change by itself; zero if that is unknown.
	Next time.Time
}

// Exit describes how a container ended.
type Exit struct {
	Code int32
	At   time.Time
	// Reason overrides Completed and Error. Message is the container's termination message.
	Reason, Message string
}

// SetUpError is a failure of SetUp with the reason of the Event that reports it.
type SetUpError struct {
	Reason string
	Err    error
}

func (e *SetUpError) Error() string { return e.Err.Error() }
func (e *SetUpError) Unwrap() error { return e.Err }

// ConfigError reports a container that cannot be created from the API's objects: the kubelet's
// CreateContainerConfigError.
type ConfigError struct{ Err error }

func (e ConfigError) Error() string { return e.Err.Error() }
func (e ConfigError) Unwrap() error { return e.Err }

// StartError reports that a container's command did not start. It counts as a failed run: the kubelet's StartError.
type StartError struct{ Err error }

func (e StartError) Error() string { return e.Err.Error() }
func (e StartError) Unwrap() error { return e.Err }

// Usage is the resource usage of a container, a pod or a machine.
type Usage struct {
	CPU        float64 // cores, averaged over a recent interval
	CPUSeconds float64 // since the start
	Memory     int64   // bytes of the working set
	Disk       int64   // bytes; the process runtime reports it for whole pods only
	PIDs       int64   // processes and threads
}

// Add adds another usage; sums of integers saturate.
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
	Ended     func() (at time.Time, ended bool) // called repeatedly while the log is followed
}

// LogReader reads a log record by record. It is not safe for concurrent use.
type LogReader interface {
	// Next returns the next record, or io.EOF if there is none yet. The text is valid until the next call.
	Next() (LogRecord, error)
	Close() error
}

// LogRecord is a line, or a part of a line that exceeded the size of a record.
type LogRecord struct {
	At      time.Time
	Text    []byte
	Stream  string // "stdout" or "stderr"
	Partial bool   // more of the line follows
}
