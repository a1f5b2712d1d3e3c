package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	"github.com/coxswain-dev/coxswain/node/process"
)

// processRuntime runs containers as processes of this machine. What it keeps is on disk, so that an agent that comes
// after it, however this one ended, finds the pods as they are:
//
//	DIR/pods/UID/           a pod: its shim's socket, files like its hosts file
//	DIR/pods/UID/containers logs, exit records, termination messages, what running containers wrote to their root
//	DIR/pods/UID/volumes    those volumes that are not elsewhere
type processRuntime struct {
	dir     string
	hide    []string
	cgroup  string
	agent   *agent
	volumes *volumes
	objects *references // that volumes are made from
	log     *slog.Logger

	networks nodeNetworks

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	pods    map[types.UID]*processPod
	samples map[string]cpuSample
}

// processPod is a pod as far as it is set up.
type processPod struct {
	*process.Pod
	env     *environment
	volumes map[string]volumeSource
}

func newProcessRuntime(o *Options) (*processRuntime, error) {
	if err := process.Supported(); err != nil {
		return nil, err
	}
	if o.DataDir == "" {
		return nil, errors.New("the process runtime needs a data directory")
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "pods"), 0o700); err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // as the kernel names what is mounted there
		return nil, err
	}
	r := &processRuntime{
		dir: dir, cgroup: "coxswain/" + digest(dir)[:12], log: o.Log, pods: map[types.UID]*processPod{}, samples: map[string]cpuSample{},
		volumes: &volumes{clock: o.Clock, memory: process.MountMemory},
	}
	for _, path := range append(slices.Clone(o.Hide), dir) {
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		r.hide = append(r.hide, path)
	}
	r.volumes.visible = func(path string) error { return process.Visible(path, r.hide) }
	for _, root := range o.VolumeRoots {
		r.volumes.roots = append(r.volumes.roots, filepath.Clean(root))
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.objects = newReferences(r.ctx, &r.running, func(pod podKey) { r.agent.stale(pod) })
	return r, nil
}

// close ends the watching. What runs goes on running.
func (r *processRuntime) close() {
	r.cancel()
	r.running.Wait()
	r.networks.close()
	process.RemoveEmpty(r.cgroup)
}

func (*processRuntime) version() string { return "process://1.0.0" }

func (*processRuntime) prepare(*corev1.Pod) time.Duration { return 0 }

// pull has nothing to do: a container's files are the host's.
func (*processRuntime) pull(_ *corev1.Pod, c *corev1.Container) (string, error) {
	return "host://" + c.Image, nil
}

func (r *processRuntime) podDir(uid types.UID) string {
	return filepath.Join(r.dir, "pods", string(uid))
}

func (r *processRuntime) podCgroup(uid types.UID) string { return r.cgroup + "/pod" + string(uid) }

func (r *processRuntime) sandbox(pod *corev1.Pod, ip string) process.Sandbox {
	s := process.Sandbox{Dir: r.podDir(pod.UID), Hostname: hostname(pod), IP: ip, HostIPC: pod.Spec.HostIPC}
	s.SharePIDs = isTrue(pod.Spec.ShareProcessNamespace) && !pod.Spec.HostPID
	if pod.Spec.HostNetwork {
		s.IP, s.Hostname = "", ""
	}
	return s
}

func hostname(pod *corev1.Pod) string {
	name := pod.Spec.Hostname
	if name == "" {
		name = pod.Name
	}
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

// setUp makes the pod's volumes and starts its shim, or brings volumes up to date.
func (r *processRuntime) setUp(ctx context.Context, pod *corev1.Pod, ip string) (again time.Duration, err error) {
	pod = pod.DeepCopy()
	pod.Status.PodIP, pod.Status.HostIP = ip, r.agent.Address
	p := &processPod{env: r.environment(pod)}
	r.objects.watch(p.env.client, pod)
	dir := r.podDir(pod.UID)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return 0, err
	}
	if p.volumes, err = r.volumes.setUp(ctx, p.env, filepath.Join(dir, "volumes")); err != nil {
		return 0, &setUpError{"FailedMount", err}
	}
	if err := writeNetworkFiles(pod, ip, dir); err != nil {
		return 0, &setUpError{"FailedCreatePodSandBox", err}
	}
	if p.Pod, err = process.Start(r.sandbox(pod, ip)); err != nil {
		return 0, &setUpError{"FailedCreatePodSandBox", fmt.Errorf("Failed to create pod sandbox: %w", err)}
	}
	r.connect(pod, p.Pod)
	if r.pod(pod.UID) == nil { // later they are the pod's own to change
		if err := p.SetSysctls(processSysctls(pod)); err != nil {
			return 0, &setUpError{"FailedCreatePodSandBox", fmt.Errorf("Failed to create pod sandbox: %w", err)}
		}
	}
	r.mu.Lock()
	r.pods[pod.UID] = p
	r.mu.Unlock()
	if !r.objects.complete(pod) {
		return refreshVolumes, nil
	}
	if renewal := r.volumes.renewal(pod.UID); !renewal.IsZero() {
		return max(refreshPause, renewal.Sub(r.agent.Clock.Now())), nil
	}
	return 0, nil
}

func processSysctls(pod *corev1.Pod) []process.Sysctl {
	var list []process.Sysctl
	for _, s := range sysctlsOf(pod) {
		list = append(list, process.Sysctl(s))
	}
	return list
}

func (r *processRuntime) environment(pod *corev1.Pod) *environment {
	return &environment{client: r.agent.nodes[pod.Spec.NodeName].client, references: r.objects, pod: pod, allocatable: r.agent.Capacity}
}

func (r *processRuntime) pod(uid types.UID) *processPod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[uid]
}

// release drops what is held for a pod's volumes.
func (r *processRuntime) release(pod types.UID) {
	r.objects.release(pod)
	r.volumes.forget(pod)
}

// tearDown ends what is left of a pod. Its logs stay until forget.
func (r *processRuntime) tearDown(pod *corev1.Pod) error {
	r.mu.Lock()
	delete(r.pods, pod.UID)
	r.mu.Unlock()
	r.release(pod.UID)
	dir := r.podDir(pod.UID)
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	return process.Adopt(process.Sandbox{Dir: dir}).Stop(r.podCgroup(pod.UID))
}

// forget removes all that there is of a pod.
func (r *processRuntime) forget(uid types.UID) error {
	r.mu.Lock()
	delete(r.pods, uid)
	for key := range r.samples {
		if strings.HasPrefix(key, r.podCgroup(uid)+"/") {
			delete(r.samples, key)
		}
	}
	r.mu.Unlock()
	r.release(uid)
	dir := r.podDir(uid)
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	return process.Adopt(process.Sandbox{Dir: dir}).Remove(r.podCgroup(uid))
}

// sweep forgets the pods of an earlier agent that are no more.
func (r *processRuntime) sweep(known func(types.UID) bool) {
	entries, err := os.ReadDir(filepath.Join(r.dir, "pods"))
	if err != nil {
		r.log.Warn("pods of an earlier agent", "err", err)
	}
	for _, e := range entries {
		if uid := types.UID(e.Name()); !known(uid) {
			if err := r.forget(uid); err != nil {
				r.log.Warn("cannot remove a pod of an earlier agent", "uid", uid, "err", err)
			}
		}
	}
}

func (r *processRuntime) dial(ctx context.Context, pod *corev1.Pod, port uint16) (net.Conn, error) {
	p := r.pod(pod.UID)
	if p == nil {
		return nil, fmt.Errorf("pod %s is not running", pod.Name)
	}
	conn, err := p.Dial(ctx, "127.0.0.1", port)
	if err != nil && p.IP != "" { // it may listen on its address alone
		if other, failed := p.Dial(ctx, p.IP, port); failed == nil {
			return other, nil
		}
	}
	return conn, err
}

func (r *processRuntime) openLog(pod *corev1.Pod, run *logRun) (logReader, error) {
	l, err := process.OpenLog(process.LogPath(r.podDir(pod.UID), run.container, run.run))
	if err != nil {
		return nil, fmt.Errorf("log of container %q: %w", run.container, err)
	}
	return fileLog{l}, nil
}

type fileLog struct{ *process.LogReader }

func (l fileLog) next() (logRecord, error) {
	at, stream, text, partial, err := l.Next()
	return logRecord{at: at, stream: stream, text: text, partial: partial}, err
}

// cpuSample is what a cgroup had taken at a moment.
type cpuSample struct {
	at      time.Time
	seconds float64
	rate    float64
}

// minSample is the least time over which a rate is taken.
const minSample = 5 * time.Second

// rate is how many cores something took between the last sample that is old enough and now.
func (r *processRuntime) rate(key string, seconds float64, started, now time.Time) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.samples[key]
	if !ok || seconds < last.seconds {
		last = cpuSample{at: started}
	}
	over := now.Sub(last.at)
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

func (r *processRuntime) usage(pod *corev1.Pod, c *corev1.Container, started, now time.Time) (usage, error) {
	cgroup := r.podCgroup(pod.UID) + "/" + c.Name
	seconds, memory, err := process.Usage(cgroup)
	if err != nil {
		return usage{}, err
	}
	return usage{cpu: r.rate(cgroup, seconds, started, now), cpuSeconds: seconds, memory: memory, pids: process.PIDs(cgroup)}, nil
}

// machine is what all of this machine takes.
func (r *processRuntime) machine(now time.Time) (usage, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return usage{}, err
	}
	first, _, _ := strings.Cut(string(stat), "\n")
	var ticks float64
	for i, field := range strings.Fields(first) {
		const idle, iowait, guest = 4, 5, 9
		if n, err := strconv.ParseFloat(field, 64); err == nil && i != idle && i != iowait && i < guest {
			ticks += n
		}
	}
	const ticksPerSecond = 100 // of all architectures that Go knows (USER_HZ)
	seconds := ticks / ticksPerSecond
	used := memInfo("MemTotal") - memInfo("MemAvailable")
	return usage{cpu: r.rate("machine", seconds, now.Add(-uptime()), now), cpuSeconds: seconds, memory: used}, nil
}

// uptime is how long the machine has run.
func uptime() time.Duration {
	text, _ := os.ReadFile("/proc/uptime")
	first, _, _ := strings.Cut(string(text), " ")
	seconds, _ := strconv.ParseFloat(first, 64)
	return time.Duration(seconds * float64(time.Second))
}

// memInfo is a value of /proc/meminfo in bytes.
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
