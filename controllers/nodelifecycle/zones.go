package nodelifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
)

// state classifies a zone by the share of its Nodes that are not ready.
type state string

const (
	normal  state = "Normal"
	partial state = "PartialDisruption" // at least UnhealthyZoneThreshold of its Nodes, and more than two
	full    state = "FullDisruption"    // all of its Nodes
)

// excludeLabel marks Nodes that do not count for the state of their zone, because they are expected to come and go.
// https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-exclude-disruption
const excludeLabel = "node.kubernetes.io/exclude-disruption"

// zone is a failure domain. The rate of its evictions depends on how many of its Nodes are not ready: if many fail at
// once, the network or the control plane is the likely cause.
type zone struct {
	state   state
	rate    float32 // Nodes per second
	limiter flowcontrol.PassiveRateLimiter
}

// zoneOf returns the name of a Node's failure domain: region and zone.
func zoneOf(node *corev1.Node) string {
	return node.Labels[corev1.LabelTopologyRegion] + "/" + node.Labels[corev1.LabelTopologyZone]
}

// updateZones sets each zone's state and eviction rate. If no zone has a ready Node, the control plane itself is
// probably cut off: no Node is tainted for eviction, and when the first Node is ready again, the grace period of every
// Node restarts.
func (l *lifecycle) updateZones(nodes []*corev1.Node, now time.Time) {
	type count struct{ ready, unready int }
	counts := map[string]count{}
	for _, node := range nodes {
		c := counts[zoneOf(node)]
		if _, excluded := node.Labels[excludeLabel]; excluded {
			counts[zoneOf(node)] = c // its zone exists, but the Node does not count for the state
			continue
		}
		if statusOf(node, corev1.NodeReady) == corev1.ConditionTrue {
			c.ready++
		} else {
			c.unready++
		}
		counts[zoneOf(node)] = c
	}
	counted, allDisrupted := false, true
	for name, c := range counts {
		z := l.zones[name]
		if z == nil {
			z = &zone{rate: -1}
			l.zones[name] = z
		}
		l.metrics.counted(name, c.ready, c.unready)
		next := l.stateOf(c.ready, c.unready)
		if next != z.state {
			l.Log.Info("zone changed", "zone", name, "state", next, "before", z.state, "ready", c.ready,
				"notReady", c.unready)
			z.state = next
		}
		l.limit(z, c.ready+c.unready)
		if c.ready+c.unready > 0 {
			counted, allDisrupted = true, allDisrupted && next == full
		}
	}
	allDisrupted = allDisrupted && counted
	if l.disrupted && !allDisrupted {
		l.Log.Info("a node is ready again: restart every node's grace period")
		l.renewAll(now)
	}
	l.disrupted = allDisrupted
}

// stateOf returns the state of a zone by its numbers of ready and unready Nodes.
func (l *lifecycle) stateOf(ready, unready int) state {
	switch {
	case ready == 0 && unready > 0:
		return full
	case unready > 2 && float64(unready)/float64(ready+unready) >= l.settings.UnhealthyZoneThreshold:
		return partial
	}
	return normal
}

// limit sets the eviction rate of a zone with size Nodes. A partially disrupted zone gets the secondary rate if it is
// large, else no Node of it is tainted for eviction.
func (l *lifecycle) limit(z *zone, size int) {
	rate := l.settings.EvictionRate
	if z.state == partial {
		rate = 0
		if size > l.settings.LargeClusterSizeThreshold {
			rate = l.settings.SecondaryEvictionRate
		}
	}
	if rate != z.rate {
		z.rate = rate
		z.limiter = flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(rate, 1, l.clock)
	}
}

// mayEvict takes a token from the zone's rate limiter and reports whether there was one.
func (l *lifecycle) mayEvict(node *corev1.Node) bool {
	z := l.zones[zoneOf(node)]
	return !l.disrupted && z.rate > 0 && z.limiter.TryAccept()
}
