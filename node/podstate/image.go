package podstate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// backOffAfter is how long the reason of a failed pull is the failure itself. Then it is ImagePullBackOff until the
// next try, as it is with the kubelet, which looks at the pod again about that late.
const backOffAfter = time.Second

// Pulled notes the result of a Pull and reports whether the pod still needs it.
func (p *Pod) Pulled(name string, attempt int, imageID string, err error, now time.Time) bool {
	c := p.find(name)
	if c == nil || c.phase != pulling || c.attempt != attempt {
		return false
	}
	c.phase = idle
	switch {
	case p.stopping, p.halted:
		return false
	case err != nil:
		p.pullFailed(c, err, now)
	default:
		c.phase, c.image = pulled, imageID
	}
	return true
}

// abandonPull ends the pull of a container, if one is under way, and forgets an image that was pulled.
func (p *Pod) abandonPull(c *container) {
	if c.phase == pulling {
		p.order(CancelPull{c.spec.Name})
	}
	if c.phase == pulling || c.phase == pulled {
		c.phase = idle
	}
}

// pullFailed notes why there is no image, in the words of the kubelet (pkg/kubelet/images/image_manager.go). Failures
// that come from a registry lead to ImagePullBackOff; the others keep their reason.
func (p *Pod) pullFailed(c *container, err error, now time.Time) {
	image, reason := c.spec.Image, runtime.ReasonOf(err)
	var message string
	event := func(kind string, text string) { p.event(corev1.EventTypeWarning, kind, "%s", text) }
	c.backOffAt, c.reported = time.Time{}, false
	switch reason {
	case runtime.InvalidImageName:
		message = fmt.Sprintf("Failed to apply default image tag %q: %v", image, err)
		event("InspectFailed", message)
	case runtime.ImageInspectError:
		message = fmt.Sprintf("Failed to inspect image %q: %v", image, err)
		event("InspectFailed", message)
	case runtime.ErrImageNeverPull:
		message = fmt.Sprintf("Container image %q is not present with pull policy of Never", image)
		event("ErrImageNeverPull", message)
	default:
		switch message = err.Error(); reason {
		case runtime.RegistryUnavailable:
			message = fmt.Sprintf("image pull failed for %s because the registry is unavailable: %v", image, err)
		case runtime.SignatureValidationFailed:
			message = fmt.Sprintf("image pull failed for %s because the signature validation failed: %v", image, err)
		}
		event("Failed", fmt.Sprintf("Failed to pull image %q: %v", image, err))
		c.backOffAt = now.Add(backOffAfter)
	}
	event("Failed", "Error: "+string(reason))
	c.waiting = &corev1.ContainerStateWaiting{Reason: string(reason), Message: message}
	c.retries++
	c.retryAt = now.Add(restartDelay(c.retries))
}

// backOffPull turns a failed pull into a back-off.
func (p *Pod) backOffPull(c *container) {
	message := fmt.Sprintf("Back-off pulling image %q", c.spec.Image)
	p.event(corev1.EventTypeNormal, "BackOff", "%s", message)
	p.event(corev1.EventTypeWarning, "Failed", "Error: ImagePullBackOff")
	c.waiting = &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff",
		Message: message + ": " + c.waiting.Reason + ": " + c.waiting.Message}
}

// replaceImages brings containers to the images of the spec, which the API lets clients change.
func (p *Pod) replaceImages(now time.Time) {
	for i, c := range p.init {
		if i < len(p.pod.Spec.InitContainers) {
			p.replaceImage(c, p.pod.Spec.InitContainers[i].Image, now)
		}
	}
	for i, c := range p.app {
		if i < len(p.pod.Spec.Containers) {
			p.replaceImage(c, p.pod.Spec.Containers[i].Image, now)
		}
	}
}

// replaceImage gives a container another image for its next run. Like the kubelet, it restarts a running container
// for that, regardless of its restartPolicy, except an init container, which has one run.
func (p *Pod) replaceImage(c *container, image string, now time.Time) {
	if c.spec.Image == image || c.phase == starting {
		return
	}
	if c.phase == running {
		if c.isInit && !runtime.IsSidecar(c.spec) {
			return
		}
		if !c.restart {
			p.event(corev1.EventTypeNormal, "Killing", "Container %s definition changed, will be restarted",
				c.spec.Name)
		}
		c.restart = true
		p.stop(c, now.Add(runtime.GracePeriod(p.pod)), now)
		return
	}
	p.abandonPull(c)
	c.setImage(image)
	if c.waiting != nil { // the back-off was that of the other image
		c.retries, c.retryAt = 0, now
	}
}

func (c *container) setImage(image string) {
	spec := *c.spec // the agent and the runtime may still use the old one
	spec.Image = image
	c.spec = &spec
}
