package node

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/podstate"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Deadlines of runtime calls are the kubelet's (--runtime-request-timeout); calls that set up a sandbox have twice as
// long, as there. The kubelet has no deadline for pulls. Here a pull is cut off after pullTimeout; the next try
// continues it if the runtime supports that.
const (
	callTimeout  = 2 * time.Minute
	setUpTimeout = 2 * callTimeout
	pullTimeout  = 2 * time.Hour
)

// advance steps a pod's state machine and carries out its actions, until it has none, and returns when the next step
// is due; zero if only an input can lead to one. Only the pod's worker calls it.
func (a *agent) advance(ctx context.Context, p *hostedPod) (next time.Time) {
	for {
		now := a.Clock.Now()
		p.mu.Lock()
		p.observe(now)
		actions, next := p.state.Step(now)
		pod, events := p.state.Pod(), p.state.TakeEvents()
		p.mu.Unlock()
		for _, e := range events {
			a.Event(pod, e.Type, e.Reason, e.Message)
		}
		if len(actions) == 0 {
			return next
		}
		for _, action := range actions {
			a.perform(ctx, p, pod, action)
		}
	}
}

// perform carries out an action of a pod's state machine. Except for pulls, it passes the result on before it
// returns.
func (a *agent) perform(ctx context.Context, p *hostedPod, pod *corev1.Pod, action podstate.Action) {
	switch action := action.(type) {
	case podstate.Pull:
		a.pull(ctx, p, pod, action)
	case podstate.CancelPull:
		p.cancelPull(action.Container)
	case podstate.Start:
		a.startContainer(ctx, p, pod, action)
	case podstate.Stop:
		if c := p.container(action.Container); c != nil {
			c.Stop(a.Clock.Now(), action.Grace)
		}
	case podstate.Resize:
		a.resizeContainer(ctx, p, action)
	}
}

func (a *agent) startContainer(ctx context.Context, p *hostedPod, pod *corev1.Pod, action podstate.Start) {
	name, now := action.Container.Name, a.Clock.Now()
	ctx, done := p.call(ctx, callTimeout)
	c, err := a.runtimeOf(pod).Start(ctx, pod, action.Container, action.Run, now)
	done()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.state.StartFailed(name, err, a.Clock.Now())
		return
	}
	p.running = append(p.running, runningContainer{name, c})
	p.state.Started(name, c.ID(), now)
}

func (a *agent) resizeContainer(ctx context.Context, p *hostedPod, action podstate.Resize) {
	c := p.container(action.Container.Name)
	if c == nil {
		return // it has ended
	}
	ctx, done := p.call(ctx, callTimeout)
	err := c.Resize(ctx, action.Container)
	done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.Resized(action.Container, err)
}

// adopt takes over the containers that an earlier agent has started. While the runtime does not answer, the pod waits,
// because its containers may or may not be lost.
func (a *agent) adopt(ctx context.Context, p *hostedPod) error {
	p.mu.Lock()
	pod, adoptions := p.state.Pod(), p.state.Adoptions()
	p.mu.Unlock()
	for _, adoption := range adoptions {
		if err := a.adoptContainer(ctx, p, pod, adoption); err != nil {
			return fmt.Errorf("adopt container %s of pod %s/%s: %w", adoption.Container.Name, pod.Namespace, pod.Name,
				err)
		}
	}
	return nil
}

func (a *agent) adoptContainer(ctx context.Context, p *hostedPod, pod *corev1.Pod, adoption podstate.Adoption) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := a.runtimeOf(pod).Adopt(ctx, pod, adoption.Container, adoption.Status)
	if err != nil && ctx.Err() != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.state.Lost(adoption.Container.Name, err)
		return nil
	}
	p.running = append(p.running, runningContainer{adoption.Container.Name, c})
	p.state.Adopted(adoption.Container.Name)
	return nil
}

// setUpSandbox calls the runtime's SetUp, and cancels it when the pod has to end.
func (a *agent) setUpSandbox(ctx context.Context, p *hostedPod, pod *corev1.Pod, addresses []string) (
	runtime.Sandbox, error) {
	ctx, done := p.call(ctx, setUpTimeout)
	defer done()
	return a.runtimeOf(pod).SetUp(ctx, pod, addresses)
}

// tearDown calls the runtime's TearDown, with a deadline.
func (a *agent) tearDown(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := a.runtimeOf(pod).TearDown(ctx, pod); err != nil {
		return fmt.Errorf("tear down pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
