package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/podstate"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// pull is a pull of a container's image that is in progress. It has a goroutine of its own, because it may take
// minutes, and must block neither a worker nor the pod.
type pull struct{ cancel context.CancelFunc }

// pull makes the image of a container available. When the pull ends, its goroutine passes the result to the state
// machine and queues the pod. With a runtime that is Imageless, the result is passed before pull returns.
func (a *agent) pull(ctx context.Context, p *hostedPod, pod *corev1.Pod, action podstate.Pull) {
	c := action.Container
	request := runtime.PullRequest{Pod: pod, Image: c.Image, Policy: c.ImagePullPolicy, Progress: func() {}}
	if a.imageless {
		image, err := a.runtimeOf(pod).Pull(ctx, request)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.state.Pulled(c.Name, action.Attempt, image.ID, err, a.Clock.Now())
		return
	}
	request.Progress = sync.OnceFunc(func() {
		a.Event(pod, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
	})
	agent := ctx
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	entry := &pull{cancel}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pulls == nil {
		p.pulls = map[string]*pull{}
	}
	if p.pulls[c.Name] = entry; p.halted {
		cancel()
	}
	a.pulling.Add(1)
	a.pulls.Go(func() {
		defer a.pulling.Add(-1)
		defer cancel()
		began := a.Clock.Now()
		image, err := a.runtimeOf(pod).Pull(ctx, request)
		if agent.Err() == nil { // otherwise the agent is stopping, and the pull has not failed
			a.endPull(p, entry, action, request, began, image, err)
		}
	})
}

// endPull passes on the result of a pull that began at the given time.
func (a *agent) endPull(p *hostedPod, entry *pull, action podstate.Pull, r runtime.PullRequest, began time.Time,
	image runtime.Image, err error) {
	now, name := a.Clock.Now(), action.Container.Name
	p.mu.Lock()
	if p.pulls[name] == entry {
		delete(p.pulls, name)
	}
	current := p.state.Pulled(name, action.Attempt, image.ID, err, now)
	p.mu.Unlock()
	if !current {
		return
	}
	if err == nil {
		a.Event(r.Pod, corev1.EventTypeNormal, "Pulled", pulledMessage(r.Image, image.Download, now.Sub(began)))
	}
	a.podQueue.Add(runtime.KeyOf(r.Pod))
}

// pulledMessage reports a pull in the kubelet's words. total includes the time spent waiting for other pulls.
func pulledMessage(image string, d *runtime.Download, total time.Duration) string {
	if d == nil {
		return fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", image)
	}
	return fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.", image,
		d.Took.Truncate(time.Millisecond), total.Truncate(time.Millisecond), d.Bytes)
}

// cancelPull ends the pull of a container, if one is under way.
func (p *hostedPod) cancelPull(container string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pull := p.pulls[container]; pull != nil {
		pull.cancel()
	}
}

// pullsBusy describes the pulls in progress; "" if there are none.
func (a *agent) pullsBusy() string {
	if n := a.pulling.Load(); n > 0 {
		return fmt.Sprintf("%d images are being pulled", n)
	}
	return ""
}
