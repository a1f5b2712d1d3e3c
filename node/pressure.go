package node

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// shortfall is a threshold that is crossed.
type shortfall struct {
	threshold
	runtime.Supply
	since time.Time
}

// pressure is the state of a node's thresholds: which are crossed, and since when. It implements the rules of the
// kubelet's eviction manager and does no I/O. Only the task watchPressure calls judge; now is safe for concurrent use.
type pressure struct {
	since   map[threshold]time.Time                // when a crossed threshold was first observed below its limit
	crossed map[threshold]bool                     // a threshold stays crossed until MinimumReclaim is free again
	last    map[corev1.NodeConditionType]time.Time // when a condition last had a reason
	evicted runtime.PodKey                         // the pod that was evicted last
	until   time.Time                              // the end of the wait for evicted

	mu         sync.Mutex
	conditions []corev1.NodeConditionType // guarded by mu
}

// conditionOf returns the Node's condition that a signal causes.
func conditionOf(s signal) corev1.NodeConditionType {
	switch signals[s] {
	case corev1.ResourceMemory:
		return corev1.NodeMemoryPressure
	case resourcePIDs:
		return corev1.NodePIDPressure
	}
	return corev1.NodeDiskPressure
}

// judge updates the state with observed resources. It returns the thresholds that have been crossed for their grace
// period, memory first, and whether the node's conditions have changed.
func (p *pressure) judge(thresholds []threshold, seen map[signal]runtime.Supply, transition time.Duration,
	now time.Time) (due []shortfall, changed bool) {
	if p.since == nil {
		p.since, p.crossed, p.last = map[threshold]time.Time{}, map[threshold]bool{},
			map[corev1.NodeConditionType]time.Time{}
	}
	for _, t := range thresholds {
		o, ok := seen[t.signal]
		least := t.least.value(o.Capacity)
		if p.crossed[t] {
			least += t.reclaim.value(o.Capacity)
		}
		if !ok || o.Available >= least {
			delete(p.since, t)
			delete(p.crossed, t)
			continue
		}
		if _, before := p.since[t]; !before {
			p.since[t] = now
		}
		p.last[conditionOf(t.signal)] = now
		if now.Sub(p.since[t]) >= t.grace {
			p.crossed[t] = true
			due = append(due, shortfall{t, o, p.since[t]})
		}
	}
	slices.SortStableFunc(due, func(a, b shortfall) int {
		return order(a.signal != memoryAvailable, b.signal != memoryAvailable)
	})
	var conditions []corev1.NodeConditionType
	for _, c := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure} {
		if last, ok := p.last[c]; ok && now.Sub(last) < transition {
			conditions = append(conditions, c)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	changed = !slices.Equal(conditions, p.conditions)
	p.conditions = conditions
	return due, changed
}

// order sorts false before true.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// now returns the conditions of the node that are True.
func (p *pressure) now() []corev1.NodeConditionType {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.conditions)
}
