package backend

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// Triggers computes the time of the change that caused the next write for a Service. The network programming
// latency is measured from it to the time at which a proxy has applied the change.
//
// It is only a measurement, so losing state in a restart does no harm. The zero value is ready for use, and
// safe for concurrent use.
type Triggers struct {
	mu       sync.Mutex
	services map[string]*seen
}

// seen holds the times that were reported at the last call, for a Service and its pods by name.
type seen struct {
	created time.Time
	pods    map[string]time.Time
}

// Since returns the earliest change since the last call: the Service's creation, or a change of a pod's
// condition Ready. It is zero if there was no such change.
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
	compare := func(old, change time.Time) {
		if change.After(old) && (first.IsZero() || change.Before(first)) {
			first = change
		}
	}
	compare(before.created, now.created)
	for name, change := range now.pods {
		compare(before.pods[name], change)
	}
	return first
}

// Forget drops the state of a Service that no longer exists.
func (t *Triggers) Forget(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.services, key)
}
