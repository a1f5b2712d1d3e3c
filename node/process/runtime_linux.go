package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/node/environment"
	"github.com/coxswain-dev/coxswain/node/process/sandbox"
	"github.com/coxswain-dev/coxswain/node/references"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/volumes"
)

// Runtime runs containers as processes of this machine. Its state is on disk, so that a later agent finds the pods,
// however this one ended:
//
//	DIR/lock                is locked by the agent that has the folder
//	DIR/pods/UID/           a pod: its shim's socket, files like its hosts file
//	DIR/pods/UID/containers logs, exit records, termination messages, what running containers wrote to their root
//	DIR/pods/UID/volumes    volumes that the agent makes
//
// Volumes in memory are in memoryDir(DIR)/UID.
type Runtime struct {
	Options
	dir     string
	locked  *os.File // the lock on dir, held until Close
	hide    []string // paths that this agent hides from containers
	cgroup  string   // parent of all pods' cgroups
	host    runtime.Host
	volumes *volumes.Volumes
	objects *references.References // sources of volumes

	networks nodeNetworks

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup // goroutines of containers and of objects

	mu      sync.Mutex
	pods    map[types.UID]*livePod // pods that are set up; guarded by mu
	samples map[string]cpuSample   // by cgroup; guarded by mu
}

// livePod is a pod that is set up.
type livePod struct {
	*sandbox.Pod
	env     *environment.Environment
	volumes map[string]volumes.Source

	mu        sync.Mutex
	resources map[string]corev1.ResourceRequirements // present resources of containers by name; guarded by mu
}

// New returns a runtime for the folder o.DataDir, and fails if another one uses it. It leaves the pods of an earlier
// runtime as they are, until Adopt or Sweep is called.
func New(h runtime.Host, o Options) (runtime.Runtime, error) {
	if err := sandbox.Supported(); err != nil {
		return nil, err
	}
	if o.DataDir == "" {
		return nil, errors.New("the process runtime needs a data directory")
	}
	if o.OpenRouter == nil {
		o.OpenRouter = openRouter
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "pods"), 0o700); err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // the kernel lists mounts under the resolved path
		return nil, err
	}
	r := &Runtime{
		host: h, Options: o, dir: dir, cgroup: cgroupOf(dir), pods: map[types.UID]*livePod{},
		samples: map[string]cpuSample{},
		volumes: &volumes.Volumes{Clock: o.Clock, Memory: sandbox.MountMemory, MemoryDir: memoryDir(dir)},
	}
	if r.locked, err = lock(dir); err != nil {
		return nil, err
	}
	if err := makeMemoryDir(dir); err != nil {
		_ = r.locked.Close()
		return nil, fmt.Errorf("make the folder of volumes in memory: %w", err)
	}
	for _, path := range append(slices.Clone(o.Hide), dir) {
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			path = resolved
		}
		r.hide = append(r.hide, path)
	}
	r.volumes.Visible = func(path string) error { return sandbox.Visible(path, r.maskedPaths()) }
	if err := r.register(); err != nil {
		r.Log.Warn("cannot share hidden paths with other agents, whose containers see them", "err", err)
	}
	for _, root := range o.VolumeRoots {
		r.volumes.Roots = append(r.volumes.Roots, filepath.Clean(root))
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.objects = references.New(r.ctx, &r.running, h.Refresh)
	return r, nil
}

// Close ends all goroutines and unlocks the folder. Containers go on running.
func (r *Runtime) Close() {
	r.cancel()
	r.running.Wait()
	r.networks.close()
	for _, folder := range classFolders {
		sandbox.RemoveEmpty(r.cgroup + folder)
	}
	sandbox.RemoveEmpty(r.cgroup)
	_ = os.Remove(memoryDir(r.dir)) // unless a pod has volumes there
	_ = r.locked.Close()
}

func (*Runtime) Version() string { return "process://1.0.0" }

func (*Runtime) Delay(*corev1.Pod) time.Duration { return 0 }

// Unsupported implements runtime.Admission.
func (*Runtime) Unsupported(pod *corev1.Pod) string { return unsupported(pod) }

// Imageless implements runtime.Imageless: the files of a container are the machine's.
func (*Runtime) Imageless() {}

// Pull accepts every image, because images have no files here.
func (*Runtime) Pull(_ context.Context, r runtime.PullRequest) (runtime.Image, error) {
	return runtime.Image{ID: "host://" + r.Image}, nil
}

func (r *Runtime) podDir(uid types.UID) string { return podDir(r.dir, uid) }

func podDir(dir string, uid types.UID) string { return filepath.Join(dir, "pods", string(uid)) }

func (r *Runtime) sandbox(pod *corev1.Pod, ip string) sandbox.Config {
	name, _ := kernelHostname(pod, r.ClusterDomain) // an error was returned by writeNetworkFiles before
	s := sandbox.Config{Dir: r.podDir(pod.UID), Memory: podMemory(r.dir, pod.UID), Hostname: name, IP: ip,
		HostIPC: pod.Spec.HostIPC}
	s.SharePIDs = ptr.Deref(pod.Spec.ShareProcessNamespace, false) && !pod.Spec.HostPID
	if pod.Spec.HostNetwork {
		s.IP, s.Hostname = "", ""
	}
	return s
}

func failedSandbox(err error) error {
	return &runtime.SetUpError{Reason: "FailedCreatePodSandBox",
		Err: fmt.Errorf("Failed to create pod sandbox: %w", err)}
}

// SetUp makes the pod's volumes and starts its shim, or updates the volumes. The pod uses the first of the addresses.
func (r *Runtime) SetUp(ctx context.Context, pod *corev1.Pod, addresses []string) (runtime.Sandbox, error) {
	ip := ""
	if len(addresses) > 0 {
		ip = addresses[0]
	}
	if err := r.setUp(ctx, pod, ip); err != nil {
		return runtime.Sandbox{}, err
	}
	sandbox := runtime.Sandbox{Addresses: addresses, Renewal: r.volumes.Renewal(pod.UID)}
	if !r.objects.Complete(pod) {
		sandbox.Again = runtime.RefreshEvery
	}
	return sandbox, nil
}

func (r *Runtime) setUp(ctx context.Context, pod *corev1.Pod, ip string) (err error) {
	pod = pod.DeepCopy()
	pod.Status.PodIP = ip
	pod.Status.HostIP, _ = runtime.HostAddress(r.Address, r.host.Subnet(pod.Spec.NodeName))
	p := &livePod{env: r.environment(pod)}
	r.objects.Watch(p.env.Client, pod)
	dir := r.podDir(pod.UID)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	if p.volumes, err = r.volumes.SetUp(ctx, p.env, filepath.Join(dir, "volumes")); err != nil {
		return &runtime.SetUpError{Reason: "FailedMount", Err: err}
	}
	if err := r.writeNetworkFiles(pod, ip, dir); err != nil {
		return &runtime.SetUpError{Reason: "FailedCreatePodSandBox", Err: err}
	}
	if err := r.limitPod(p); err != nil {
		return failedSandbox(err)
	}
	if p.Pod, err = sandbox.Start(r.sandbox(pod, ip)); err != nil {
		return failedSandbox(err)
	}
	if err := r.connect(ctx, pod, p.Pod); err != nil {
		return err
	}
	if r.pod(pod.UID) == nil { // later the pod itself may change them
		if err := p.SetSysctls(ctx, sysctls(pod)); err != nil {
			return failedSandbox(err)
		}
	}
	r.mu.Lock()
	r.pods[pod.UID] = p
	r.mu.Unlock()
	r.shareMachine()
	return nil
}

// limitPod makes the cgroup of a new pod, or updates the limits of a pod that is resized as a whole.
func (r *Runtime) limitPod(p *livePod) error {
	group := podCgroup(r.cgroup, p.env.Pod)
	before := r.pod(p.env.Pod.UID)
	if before == nil {
		return sandbox.Group(group, podLimits(p.env.Pod))
	}
	before.mu.Lock()
	p.resources = maps.Clone(before.resources)
	before.mu.Unlock()
	if p.env.Pod.Spec.Resources == nil {
		return nil // Resize of a container also updates its pod
	}
	return sandbox.Resize(group, p.limits())
}

func sysctls(pod *corev1.Pod) []sandbox.Sysctl {
	var list []sandbox.Sysctl
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		list = append(list, sandbox.Sysctl(s))
	}
	return list
}

func (r *Runtime) environment(pod *corev1.Pod) *environment.Environment {
	return &environment.Environment{Client: r.host.Client(pod.Spec.NodeName), References: r.objects, Pod: pod,
		Allocatable: r.Allocatable}
}

func (r *Runtime) pod(uid types.UID) *livePod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[uid]
}

// release ends the watches of a pod's volume sources and drops its tokens.
func (r *Runtime) release(pod types.UID) {
	r.objects.Release(pod)
	r.volumes.Forget(pod)
}

// TearDown ends the containers of a pod. Its logs stay until Forget.
func (r *Runtime) TearDown(ctx context.Context, pod *corev1.Pod) error {
	r.mu.Lock()
	p := r.pods[pod.UID]
	delete(r.pods, pod.UID)
	r.mu.Unlock()
	if p != nil {
		r.disconnect(pod, p.IP)
	}
	r.release(pod.UID)
	dir := r.podDir(pod.UID)
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	defer r.shareMachine()
	return sandbox.Adopt(sandbox.Config{Dir: dir}).Stop(ctx, podCgroup(r.cgroup, pod))
}

// Forget removes a pod's containers, files and cgroups.
func (r *Runtime) Forget(ctx context.Context, uid types.UID) error {
	r.mu.Lock()
	delete(r.pods, uid)
	for key := range r.samples {
		if strings.Contains(key, "/pod"+string(uid)+"/") {
			delete(r.samples, key)
		}
	}
	r.mu.Unlock()
	r.release(uid)
	dir := r.podDir(uid)
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	p := sandbox.Adopt(sandbox.Config{Dir: dir, Memory: podMemory(r.dir, uid)})
	return p.Remove(ctx, podCgroups(r.cgroup, uid)...)
}

// Sweep forgets the pods of an earlier agent that are not known.
func (r *Runtime) Sweep(ctx context.Context, known func(types.UID) bool) {
	entries, err := os.ReadDir(filepath.Join(r.dir, "pods"))
	if err != nil {
		r.Log.Warn("cannot list the pods of an earlier agent", "err", err)
	}
	for _, e := range entries {
		if uid := types.UID(e.Name()); !known(uid) {
			if err := r.Forget(ctx, uid); err != nil {
				r.Log.Warn("cannot remove a pod of an earlier agent", "uid", uid, "err", err)
			}
		}
	}
}

func (r *Runtime) Dial(ctx context.Context, pod *corev1.Pod, port uint16) (net.Conn, error) {
	p := r.pod(pod.UID)
	if p == nil {
		return nil, fmt.Errorf("pod %s is not running", pod.Name)
	}
	conn, err := p.Dial(ctx, "127.0.0.1", port)
	if err != nil && p.IP != "" { // the program may listen on the pod's address only
		if other, failed := p.Dial(ctx, p.IP, port); failed == nil {
			return other, nil
		}
	}
	return conn, err
}

func (r *Runtime) OpenLog(pod *corev1.Pod, run *runtime.LogRun) (runtime.LogReader, error) {
	l, err := sandbox.OpenLog(sandbox.LogPath(r.podDir(pod.UID), run.Container, run.Run))
	if err != nil {
		return nil, fmt.Errorf("open log of container %q: %w", run.Container, err)
	}
	return fileLog{l}, nil
}

type fileLog struct{ *sandbox.LogReader }

func (l fileLog) Next() (runtime.LogRecord, error) {
	at, stream, text, partial, err := l.LogReader.Next()
	return runtime.LogRecord{At: at, Stream: stream, Text: text, Partial: partial}, err
}

// cpuSample is the CPU time of a cgroup or the machine at one moment, and the usage in cores until then.
type cpuSample struct {
	time    time.Time
	seconds float64
	rate    float64
}

// minSample is the minimum time over which rate averages.
const minSample = 5 * time.Second

// rate returns the average CPU usage in cores since the last sample that is at least minSample old.
func (r *Runtime) rate(key string, seconds float64, started, now time.Time) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.samples[key]
	if !ok || seconds < last.seconds {
		last = cpuSample{time: started}
	}
	over := now.Sub(last.time)
	if ok && over < minSample {
		return last.rate
	}
	rate := 0.0
	if over > 0 {
		rate = max(0, seconds-last.seconds) / over.Seconds()
	}
	r.samples[key] = cpuSample{now, seconds, rate}
	return rate
}

func (r *Runtime) Usage(_ context.Context, pod *corev1.Pod, c *corev1.Container, started, now time.Time) (
	runtime.Usage, error) {
	cgroup := podCgroup(r.cgroup, pod) + "/" + c.Name
	seconds, memory, err := sandbox.Usage(cgroup)
	if err != nil {
		return runtime.Usage{}, err
	}
	return runtime.Usage{CPU: r.rate(cgroup, seconds, started, now), CPUSeconds: seconds, Memory: memory,
		PIDs: sandbox.PIDs(cgroup)}, nil
}

// Load returns the usage of the whole machine.
func (r *Runtime) Load(now time.Time) (runtime.Usage, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return runtime.Usage{}, err
	}
	first, _, _ := strings.Cut(string(stat), "\n")
	var ticks float64
	for i, field := range strings.Fields(first) {
		const idle, iowait, guest = 4, 5, 9
		if n, err := strconv.ParseFloat(field, 64); err == nil && i != idle && i != iowait && i < guest {
			ticks += n
		}
	}
	const ticksPerSecond = 100 // USER_HZ, on all architectures that Go supports
	seconds := ticks / ticksPerSecond
	used := memInfo("MemTotal") - memInfo("MemAvailable")
	return runtime.Usage{CPU: r.rate("machine", seconds, now.Add(-uptime()), now), CPUSeconds: seconds, Memory: used},
		nil
}

// uptime returns the time since the machine's start.
func uptime() time.Duration {
	text, _ := os.ReadFile("/proc/uptime")
	first, _, _ := strings.Cut(string(text), " ")
	seconds, _ := strconv.ParseFloat(first, 64)
	return time.Duration(seconds * float64(time.Second))
}

// memInfo returns a value of /proc/meminfo in bytes.
func memInfo(name string) int64 {
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == name+":" {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			return n << 10
		}
	}
	return 0
}
