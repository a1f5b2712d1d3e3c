package node

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

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/process"
	"github.com/coxswain-dev/coxswain/node/stream"
)

// processContainer is one run of a container as a process, with its probes and hooks.
type processContainer struct {
	target
	runtime *processRuntime
	pod     *processPod
	key     podKey
	run     int32
	prober  *prober
	ended   chan struct{} // closed when exit is known
	ctx     context.Context
	cancel  context.CancelFunc

	mu       sync.Mutex
	stopping bool
	exit     *containerExit
}

// start makes the container's process.
func (r *processRuntime) start(pod *corev1.Pod, c *corev1.Container, run int32, now time.Time) (container, error) {
	p := r.pod(pod.UID)
	if p == nil {
		return nil, errors.New("the pod is not set up")
	}
	normal := func(reason, format string, args ...any) {
		r.agent.event(pod, corev1.EventTypeNormal, reason, fmt.Sprintf(format, args...))
	}
	normal("Pulled", "Container image %q is not pulled: its command runs on the files of this machine", c.Image)
	spec, err := r.containerConfig(p, c, run)
	if err != nil {
		return nil, err
	}
	spec.Target = targetOf(pod, c)
	normal("Created", "Container created")
	if err := p.Run(spec); err != nil {
		return nil, err
	}
	normal("Started", "Container started")
	pc := r.container(p, pod, c, run)
	r.running.Go(func() { pc.live(now) })
	return pc, nil
}

// adopt takes up a run that an earlier agent started.
func (r *processRuntime) adopt(pod *corev1.Pod, c *corev1.Container, status *corev1.ContainerStatus) (container, error) {
	full := pod.DeepCopy()
	p := &processPod{
		Pod: process.Adopt(r.sandbox(pod, pod.Status.PodIP)),
		env: r.environment(full),
	}
	r.mu.Lock()
	if known := r.pods[pod.UID]; known != nil {
		p = known
	} else {
		r.pods[pod.UID] = p
	}
	r.mu.Unlock()
	pc := r.container(p, pod, c, status.RestartCount)
	pc.prober.ready, pc.prober.started = status.Ready, status.Started != nil && *status.Started
	r.running.Go(func() { pc.live(status.State.Running.StartedAt.Time) })
	return pc, nil
}

func (r *processRuntime) container(p *processPod, pod *corev1.Pod, c *corev1.Container, run int32) *processContainer {
	pc := &processContainer{runtime: r, pod: p, key: keyOf(pod), run: run, ended: make(chan struct{})}
	pc.ctx, pc.cancel = context.WithCancel(r.ctx)
	podIP := p.IP
	if podIP == "" {
		podIP = r.agent.Address
	}
	pc.target = target{pod: pod, container: c, podIP: podIP, exec: pc.exec, dial: func(ctx context.Context, host string, port uint16) (net.Conn, error) {
		return p.Dial(ctx, host, port)
	}}
	pc.prober = &prober{
		target: pc.target, clock: r.agent.Clock, changed: pc.wake,
		event: func(kind, reason, message string) { r.agent.event(pod, kind, reason, message) },
		unhealthy: func(kind probeKind) {
			grace := gracePeriodOf(pod)
			if probe := c.LivenessProbe; kind == livenessProbe && probe.TerminationGracePeriodSeconds != nil {
				grace = seconds(*probe.TerminationGracePeriodSeconds)
			}
			pc.kill(fmt.Sprintf("Container %s failed %s probe, will be restarted", c.Name, strings.ToLower(string(kind))), grace)
		},
	}
	return pc
}

func (c *processContainer) id() string {
	return "process://" + digest(string(c.key.uid), c.container.Name, strconv.Itoa(int(c.run)))
}

func (c *processContainer) wake() { c.runtime.agent.podQueue.Add(c.key) }

// live accompanies the container from its start to its end, or the agent's.
func (c *processContainer) live(since time.Time) {
	defer c.cancel()
	c.runtime.running.Go(func() {
		if c.postStart() {
			c.prober.run(c.ctx, since)
		}
	})
	exit, err := c.pod.Wait(c.runtime.ctx, c.container.Name, c.run)
	if c.runtime.ctx.Err() != nil {
		return
	}
	found := &containerExit{code: 137, at: c.runtime.agent.Clock.Now(), reason: "ContainerStatusUnknown", message: "The container could not be located"}
	if err == nil {
		found = &containerExit{code: exit.Code, at: exit.At, message: c.terminationMessage(exit.Code)}
		if exit.OOMKilled {
			found.reason = "OOMKilled"
		}
	}
	c.mu.Lock()
	c.exit = found
	c.mu.Unlock()
	close(c.ended)
	c.wake()
}

// postStart runs the hook of that name, where it has not run before.
func (c *processContainer) postStart() bool {
	if c.container.Lifecycle == nil || c.container.Lifecycle.PostStart == nil || c.prober.isStarted() {
		return true
	}
	err := c.hook(c.ctx, c.container.Lifecycle.PostStart, c.runtime.agent.Clock)
	if err == nil || c.ctx.Err() != nil {
		return c.ctx.Err() == nil
	}
	c.runtime.agent.event(c.target.pod, corev1.EventTypeWarning, "FailedPostStartHook", fmt.Sprintf("PostStartHook failed: %v", err))
	c.kill("FailedPostStartHook", gracePeriodOf(c.target.pod))
	return false
}

// state is ready as the probes say.
func (c *processContainer) state(time.Time) containerState {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exit != nil {
		return containerState{exit: c.exit}
	}
	ready, started := c.prober.state()
	return containerState{ready: ready && !c.stopping, starting: !started}
}

// resize writes new limits to the container's cgroup.
func (c *processContainer) resize(spec *corev1.Container) error {
	return process.Resize(c.runtime.podCgroup(c.key.uid)+"/"+spec.Name, limits(&spec.Resources))
}

// kill ends the container for a reason that people will want to know.
func (c *processContainer) kill(why string, grace time.Duration) {
	c.runtime.agent.event(c.target.pod, corev1.EventTypeNormal, "Killing", why)
	c.stop(time.Time{}, grace)
}

// stop runs the preStop hook and asks the container to end by SIGTERM, both within grace, and then kills it.
func (c *processContainer) stop(_ time.Time, grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping || c.exit != nil {
		return
	}
	c.stopping = true
	c.runtime.running.Go(func() { c.end(grace) })
}

func (c *processContainer) end(grace time.Duration) {
	timer := c.runtime.agent.Clock.NewTimer(max(grace, time.Millisecond))
	defer timer.Stop()
	hooked := make(chan struct{})
	go func() { // ends with the container at the latest
		defer close(hooked)
		if l := c.container.Lifecycle; l != nil && l.PreStop != nil && grace > 0 {
			if err := c.hook(c.ctx, l.PreStop, c.runtime.agent.Clock); err != nil && c.ctx.Err() == nil {
				c.runtime.agent.event(c.target.pod, corev1.EventTypeWarning, "FailedPreStopHook", fmt.Sprintf("PreStopHook failed: %v", err))
			}
		}
	}()
	for {
		select {
		case <-hooked:
			hooked = nil
			if grace > 0 {
				c.signal(syscall.SIGTERM)
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

func (c *processContainer) signal(s syscall.Signal) {
	if err := c.pod.Signal(c.container.Name, c.run, s); err != nil && !errors.Is(err, process.ErrGone) {
		c.runtime.log.Debug("signal", "container", c.container.Name, "err", err)
	}
}

// drain is how long outputs may stay open after a command has ended, because of what it left behind.
const drain = 2 * time.Second

// exec runs a command in the container.
func (c *processContainer) exec(ctx context.Context, argv []string, s *stream.Command) error {
	if len(argv) == 0 {
		return errors.New("no command")
	}
	files, err := c.pod.Exec(c.container.Name, c.run, argv, s.Stdin != nil, s.TTY)
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
	timer := c.runtime.agent.Clock.NewTimer(drain)
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

// attach joins the streams of the container's own command until that ends.
func (c *processContainer) attach(ctx context.Context, s *stream.Command) error {
	files, err := c.pod.Attach(c.container.Name, c.run)
	if err != nil {
		return err
	}
	defer files.Close()
	defer context.AfterFunc(ctx, files.Close)()
	outputs := copyStreams(ctx, files, s, func() {
		if c.container.StdinOnce {
			_ = c.pod.CloseStdin(c.container.Name, c.run)
		}
	})
	select {
	case <-outputs:
	case <-ctx.Done():
	}
	return nil
}

// copyStreams copies between a client and files, and returns a channel that is closed when all outputs have ended.
func copyStreams(ctx context.Context, files *process.Streams, s *stream.Command, inputEnded func()) <-chan struct{} {
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
		go func() { // ends with the client, which is closed after this
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
	pass := func(to io.Writer, from *os.File) {
		if from == nil {
			return
		}
		if to == nil {
			to = io.Discard
		}
		copying.Go(func() { _, _ = io.Copy(to, from) })
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

// The kubelet's bounds of termination messages.
const (
	maxMessage      = 4096
	maxLogMessage   = 2048
	maxMessageLines = 80
)

func (r *processRuntime) messagePath(p *processPod, container string, run int32) string {
	return process.MessagePath(p.Dir, container, run)
}

// terminationMessage is what the container left to say.
func (c *processContainer) terminationMessage(code int32) string {
	text, err := readContainerFile(c.runtime.messagePath(c.pod, c.container.Name, c.run), maxMessage)
	if err != nil {
		text = fmt.Appendf(nil, "Error on reading termination log %s: %v", c.container.TerminationMessagePath, err)
	}
	if len(text) > 0 || code == 0 || c.container.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		return strings.ToValidUTF8(string(text), "\uFFFD")
	}
	return strings.ToValidUTF8(lastLines(process.LogPath(c.pod.Dir, c.container.Name, c.run)), "\uFFFD")
}

// lastLines is what a log ends with.
func lastLines(path string) string {
	l, err := process.OpenLogEnd(path)
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
