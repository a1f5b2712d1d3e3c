package podstate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Action is an order to the agent: Pull, CancelPull, Start, Stop or Resize.
type Action interface{ action() }

// Pull makes the image of a container available. The agent passes the result to Pulled, with the same Attempt. It
// does not wait for the result before it carries out other actions.
type Pull struct {
	Container *corev1.Container
	Attempt   int
}

// CancelPull ends the Pull of a container. Its result is no longer needed.
type CancelPull struct{ Container string }

// Start starts a run of a container. The agent passes the result to Started or StartFailed.
type Start struct {
	Container *corev1.Container
	Run       int32 // counts the container's runs, from 0
}

// Stop asks a running container to end within a time. It may be repeated with less time. The container's Exit comes
// with Observe.
type Stop struct {
	Container string
	Grace     time.Duration
}

// Resize gives a running container the resources of its spec. The agent passes the result to Resized.
type Resize struct{ Container *corev1.Container }

func (Pull) action()       {}
func (CancelPull) action() {}
func (Start) action()      {}
func (Stop) action()       {}
func (Resize) action()     {}

func (p *Pod) order(a Action) { p.actions = append(p.actions, a) }

// Event is an Event about the pod.
type Event struct{ Type, Reason, Message string }

func (p *Pod) event(kind, reason, format string, args ...any) {
	p.events = append(p.events, Event{kind, reason, fmt.Sprintf(format, args...)})
}

// TakeEvents returns the Events since the last call, for the agent to record.
func (p *Pod) TakeEvents() []Event {
	events := p.events
	p.events = nil
	return events
}
