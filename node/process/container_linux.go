package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/probe"
	"github.com/coxswain-dev/coxswain/node/process/sandbox"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/stream"
)

// container is one run of a container as a process, with its probes and hooks.
type container struct {
	probe.Target
	runtime *Runtime
	pod     *livePod
	key     runtime.PodKey
	run     int32
	prober  *probe.Prober
	ended   chan struct{} // closed once exit is set
	ctx     context.Context
	cancel  context.CancelFunc

	mu       sync.Mutex    // guards the fields below
	stopping bool          // Stop was called
	exit     *runtime.Exit // nil while the process runs
}

// Start starts the container's process.
func (r *Runtime) Start(ctx context.Context, pod *corev1.Pod, c *corev1.Container, run int32, now time.Time) (
	runtime.Container, error) {
	p := r.pod(pod.UID)
	if p == nil {
		return nil, errors.New("the pod is not set up")
	}
	if reason := unsupportedContainer(c); reason != "" { // ephemeral containers were not part of the admitted pod
		return nil, runtime.ConfigError{Err: errors.New(reason)}
	}
	normal := func(reason, format string, args ...any) {
		r.host.Event(pod, corev1.EventTypeNormal, reason, fmt.Sprintf(format, args...))
	}
	normal("Pulled", "Container image %q is not pulled: its command runs on the files of this machine", c.Image)
	spec, err := r.containerConfig(ctx, p, c, run)
	if err != nil {
		return nil, err
	}
	spec.Target = targetOf(pod, c)
	normal("Created", "Container created")
	if err := p.Run(ctx, spec); err != nil {
		if command := new(sandbox.StartError); errors.As(err, &command) {
			err = runtime.StartError{Err: err}
		}
		return nil, err
	}
	normal("Started", "Container started")
	p.note(c)
	pc := r.container(p, pod, c, run)
	r.running.Go(func() { pc.live(now) })
	return pc, nil
}

// Adopt takes over a run that an earlier agent started.
func (r *Runtime) Adopt(_ context.Context, pod *corev1.Pod, c *corev1.Container, status *corev1.ContainerStatus) (
	runtime.Container, error) {
	full := pod.DeepCopy()
	p := &livePod{
		Pod: sandbox.Adopt(r.sandbox(pod, pod.Status.PodIP)),
		env: r.environment(full),
	}
	r.mu.Lock()
	if existing := r.pods[pod.UID]; existing != nil {
		p = existing
	} else {
		r.pods[pod.UID] = p
	}
	r.mu.Unlock()
	p.note(c)
	pc := r.container(p, pod, c, status.RestartCount)
	pc.prober.Resume(status.Ready, ptr.Deref(status.Started, false))
	r.running.Go(func() { pc.live(status.State.Running.StartedAt.Time) })
	return pc, nil
}

// ProbeResults implements node.Probed.
func (c *container) ProbeResults() map[probe.Result]uint64 { return c.prober.Results() }

func (r *Runtime) container(p *livePod, pod *corev1.Pod, c *corev1.Container, run int32) *container {
	pc := &container{runtime: r, pod: p, key: runtime.KeyOf(pod), run: run, ended: make(chan struct{})}
	pc.ctx, pc.cancel = context.WithCancel(r.ctx)
	podIP := p.IP
	if podIP == "" {
		podIP = r.Address
	}
	pc.Target = probe.Target{Pod: pod, Container: c, PodIP: podIP, Exec: pc.Exec,
		Dial: func(ctx context.Context, host string, port uint16) (net.Conn, error) {
			return p.Dial(ctx, host, port)
		}}
	pc.prober = &probe.Prober{
		Target: pc.Target, Clock: r.Clock, Changed: pc.wake,
		Event: func(kind, reason, message string) { r.host.Event(pod, kind, reason, message) },
		Unhealthy: func(kind probe.Kind) {
			grace := runtime.GracePeriod(pod)
			failed := c.LivenessProbe
			if kind == probe.Startup {
				failed = c.StartupProbe
			}
			if failed.TerminationGracePeriodSeconds != nil {
				grace = amount.Seconds(*failed.TerminationGracePeriodSeconds)
			}
			pc.kill(fmt.Sprintf("Container %s failed %s probe, will be restarted", c.Name,
				strings.ToLower(string(kind))), grace)
		},
	}
	return pc
}

func (c *container) ID() string {
	return runtime.ContainerID("process", c.key.UID, c.Container.Name, c.run)
}

func (c *container) wake() { c.runtime.host.Wake(c.key) }

// live runs the container's postStart hook and probes and waits for its exit. It returns when the container or the
// runtime ends.
func (c *container) live(since time.Time) {
	defer c.cancel()
	c.runtime.running.Go(func() {
		if c.postStart() {
			c.prober.Run(c.ctx, since)
		}
	})
	exit, err := c.pod.Wait(c.runtime.ctx, c.Container.Name, c.run)
	if c.runtime.ctx.Err() != nil {
		return
	}
	found := &runtime.Exit{Code: 137, At: c.runtime.Clock.Now(), Reason: "ContainerStatusUnknown",
		Message: "The container could not be located"}
	if err == nil {
		found = &runtime.Exit{Code: exit.Code, At: exit.At, Message: c.terminationMessage(exit.Code)}
		if exit.OOMKilled {
			found.Reason = "OOMKilled"
		}
	}
	c.mu.Lock()
	c.exit = found
	c.mu.Unlock()
	close(c.ended)
	c.wake()
}

// postStart runs the container's postStart hook, unless an earlier agent has done so. It reports whether probes may
// begin: a failure of the hook kills the container.
func (c *container) postStart() bool {
	if c.Container.Lifecycle == nil || c.Container.Lifecycle.PostStart == nil || c.prober.IsStarted() {
		return true
	}
	err := c.Hook(c.ctx, c.Container.Lifecycle.PostStart, c.runtime.Clock)
	if err == nil || c.ctx.Err() != nil {
		return c.ctx.Err() == nil
	}
	c.runtime.host.Event(c.Target.Pod, corev1.EventTypeWarning, "FailedPostStartHook",
		fmt.Sprintf("PostStartHook failed: %v", err))
	c.kill("FailedPostStartHook", runtime.GracePeriod(c.Target.Pod))
	return false
}

// State returns the results of the probes, or the exit.
func (c *container) State(time.Time) runtime.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exit != nil {
		return runtime.State{Exit: c.exit}
	}
	ready, started := c.prober.State()
	return runtime.State{Ready: ready && !c.stopping, Starting: !started}
}

// Resize writes new limits to the container's cgroup, and their sum to the pod's. In between, the pod has the looser of
// its old and new limits, so that they are never below its containers'.
func (c *container) Resize(_ context.Context, spec *corev1.Container) error {
	group := podCgroup(c.runtime.cgroup, c.pod.env.Pod)
	before := c.pod.limits()
	c.pod.note(spec)
	after := c.pod.limits()
	if err := sandbox.Resize(group, before.Loosest(after)); err != nil {
		return err
	}
	if err := sandbox.Resize(group+"/"+spec.Name, limits(&spec.Resources)); err != nil {
		return err
	}
	return sandbox.Resize(group, after)
}

// kill stops the container, and records the reason in an Event.
func (c *container) kill(reason string, grace time.Duration) {
	c.runtime.host.Event(c.Target.Pod, corev1.EventTypeNormal, "Killing", reason)
	c.Stop(time.Time{}, grace)
}

// Stop runs the preStop hook and sends the stop signal, both within grace, and then kills the container.
func (c *container) Stop(_ time.Time, grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping || c.exit != nil {
		return
	}
	c.stopping = true
	c.runtime.running.Go(func() { c.end(grace) })
}

func (c *container) end(grace time.Duration) {
	timer := c.runtime.Clock.NewTimer(max(grace, time.Millisecond))
	defer timer.Stop()
	hooked := make(chan struct{})
	go func() { // ends with the container at the latest
		defer close(hooked)
		if l := c.Container.Lifecycle; l != nil && l.PreStop != nil && grace > 0 {
			if err := c.Hook(c.ctx, l.PreStop, c.runtime.Clock); err != nil && c.ctx.Err() == nil {
				c.runtime.host.Event(c.Target.Pod, corev1.EventTypeWarning, "FailedPreStopHook",
					fmt.Sprintf("PreStopHook failed: %v", err))
			}
		}
	}()
	for {
		select {
		case <-hooked:
			hooked = nil
			if grace > 0 {
				c.signal(stopSignal(c.Container))
			}
		case <-timer.C():
			c.signal(syscall.SIGKILL)
		case <-c.ended:
			return
		case <-c.runtime.ctx.Done():
			return
		}
	}
}

// stopSignal returns the signal that asks a container to end.
func stopSignal(c *corev1.Container) syscall.Signal {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return syscall.SIGTERM
	}
	name := string(*c.Lifecycle.StopSignal)
	if s := unix.SignalNum(name); s != 0 {
		return s
	}
	const first, last = 34, 64 // real-time signals have no names of their own
	if n, ok := strings.CutPrefix(name, "SIGRTMIN"); ok {
		more, _ := strconv.Atoi(n) // "" is 0
		return syscall.Signal(first + more)
	}
	if n, ok := strings.CutPrefix(name, "SIGRTMAX"); ok {
		less, _ := strconv.Atoi(n) // "" is 0; otherwise negative
		return syscall.Signal(last + less)
	}
	return syscall.SIGTERM // validation allows no other signals
}

func (c *container) signal(s syscall.Signal) {
	if err := c.pod.Signal(c.Container.Name, c.run, s); err != nil && !errors.Is(err, sandbox.ErrGone) {
		c.runtime.Log.Debug("cannot send a signal", "container", c.Container.Name, "err", err)
	}
}

// drain limits the wait for output after a command has ended: processes that it has started may keep its output open.
const drain = 2 * time.Second

// Exec runs a command in the container.
func (c *container) Exec(ctx context.Context, argv []string, s *stream.Command) error {
	if len(argv) == 0 {
		return errors.New("no command")
	}
	files, err := c.pod.Exec(c.Container.Name, c.run, argv, s.Stdin != nil, s.TTY)
	if err != nil {
		return err
	}
	defer files.Close()
	defer context.AfterFunc(ctx, files.Close)()
	outputs := copyStreams(ctx, files, s, nil)
	exit, err := files.Wait()
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	timer := c.runtime.Clock.NewTimer(drain)
	defer timer.Stop()
	select {
	case <-outputs:
	case <-timer.C():
	case <-ctx.Done():
	}
	if exit.Code != 0 {
		return &stream.ExitError{Code: int(exit.Code)}
	}
	return nil
}

// Attach joins the streams of the container's own command until it ends.
func (c *container) Attach(ctx context.Context, s *stream.Command) error {
	files, err := c.pod.Attach(c.Container.Name, c.run)
	if err != nil {
		return err
	}
	defer files.Close()
	defer context.AfterFunc(ctx, files.Close)()
	outputs := copyStreams(ctx, files, s, func() {
		if c.Container.StdinOnce {
			_ = c.pod.CloseStdin(c.Container.Name, c.run)
		}
	})
	select {
	case <-outputs:
	case <-ctx.Done():
	}
	return nil
}

// copyStreams copies between a client and files, and returns a channel that is closed when all outputs have ended.
func copyStreams(ctx context.Context, files *sandbox.Streams, s *stream.Command, inputEnded func()) <-chan struct{} {
	in := files.Stdin
	if files.Terminal != nil {
		in = files.Terminal
		go func() { // ends with the client or ctx
			for {
				select {
				case size, ok := <-s.Resize:
					if !ok {
						return
					}
					files.Resize(size.Width, size.Height)
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	if s.Stdin != nil && in != nil {
		go func() { // ends with the client's connection, which is closed after this function
			_, _ = io.Copy(in, s.Stdin)
			if files.Stdin != nil {
				_ = files.Stdin.Close()
			}
			if inputEnded != nil {
				inputEnded()
			}
		}()
	}
	var copying sync.WaitGroup
	pass := func(target io.Writer, source *os.File) {
		if source == nil {
			return
		}
		if target == nil {
			target = io.Discard
		}
		copying.Go(func() { _, _ = io.Copy(target, source) })
	}
	if files.Stdout == nil {
		pass(s.Stdout, files.Terminal)
	}
	pass(s.Stdout, files.Stdout)
	pass(s.Stderr, files.Stderr)
	done := make(chan struct{})
	go func() {
		copying.Wait()
		close(done)
	}()
	return done
}

// Limits of termination messages, as in the kubelet.
const (
	maxMessage      = 4096
	maxLogMessage   = 2048
	maxMessageLines = 80
)

func (r *Runtime) messagePath(p *livePod, container string, run int32) string {
	return sandbox.MessagePath(p.Dir, container, run)
}

// terminationMessage returns the container's termination message, or the end of its log where its policy and exit code
// ask for that.
func (c *container) terminationMessage(code int32) string {
	text, err := readContainerFile(c.runtime.messagePath(c.pod, c.Container.Name, c.run), maxMessage)
	if err != nil {
		text = fmt.Appendf(nil, "Error on reading termination log %s: %v", c.Container.TerminationMessagePath, err)
	}
	if len(text) > 0 || code == 0 ||
		c.Container.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		return strings.ToValidUTF8(string(text), "\uFFFD")
	}
	return strings.ToValidUTF8(lastLines(sandbox.LogPath(c.pod.Dir, c.Container.Name, c.run)), "\uFFFD")
}

// lastLines returns the last lines of a log.
func lastLines(path string) string {
	l, err := sandbox.OpenLogEnd(path)
	if err != nil {
		return ""
	}
	defer func() { _ = l.Close() }()
	var lines []string
	for whole := true; ; {
		_, _, text, partial, err := l.Next()
		if err != nil {
			break
		}
		if whole {
			lines = append(lines, "")
		}
		if whole = !partial; whole {
			text = append(text, '\n')
		}
		lines[len(lines)-1] += string(text)
		if len(lines) > maxMessageLines {
			lines = lines[1:]
		}
	}
	all := strings.Join(lines, "")
	return all[max(0, len(all)-maxLogMessage):]
}
