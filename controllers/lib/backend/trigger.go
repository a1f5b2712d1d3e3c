package backend

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// Triggers finds out which moment's change the next write for a Service answers to. From it
// and the time at which a proxy has acted, the network programming latency is computed.
//
// It is a measure only: what a restart loses is not missed. The zero value is ready for use,
// and safe for concurrent use.
type Triggers struct {
	mu       sync.Mutex
	services map[string]*seen
}

// seen are the moments that have been reported for a Service, of itself and of its pods.
type seen struct {
	created time.Time
	pods    map[string]time.Time
}

// Since returns the earliest of the changes that were not there at the last call: the
// Service's creation, and the times at which pods became ready or ceased to be. It is zero
// where nothing of that kind is new.
func (t *Triggers) Since(s *corev1.Service, pods []*corev1.Pod) time.Time {
	now := &seen{created: s.CreationTimestamp.Time, pods: make(map[string]time.Time, len(pods))}
	for _, pod := range pods {
		if c := controller.PodCondition(pod, corev1.PodReady); c != nil {
			now.pods[pod.Name] = c.LastTransitionTime.Time
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.services == nil {
		t.services = map[string]*seen{}
	}
	key := controller.KeyOf(s)
	before := t.services[key]
	t.services[key] = now
	if before == nil {
		before = &seen{}
	}
	var first time.Time
	note := func(old, at time.Time) {
		if at.After(old) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	note(before.created, now.created)
	for name, at := range now.pods {
		note(before.pods[name], at)
	}
	return first
}

// Forget drops what is known of a Service that is no more.
func (t *Triggers) Forget(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.services, key)
}
