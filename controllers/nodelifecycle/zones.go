package nodelifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
)

// state is how many of a zone's Nodes are not ready, in words.
type state string

const (
	normal  state = "Normal"
	partial state = "PartialDisruption" // at least the threshold's share, and more than two
	full    state = "FullDisruption"    // all of them
)

// excludeLabel is of Nodes that come and go as they please.
// https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-exclude-disruption
const excludeLabel = "node.kubernetes.io/exclude-disruption"

// zone is a failure domain. Its Nodes are given up at a rate that depends on how many of them
// are not ready: if many fail at once, it is more likely the network, or us.
type zone struct {
	state   state
	rate    float32 // Nodes per second
	limiter flowcontrol.PassiveRateLimiter
}

// zoneOf names a Node's failure domain, by region and zone.
func zoneOf(node *corev1.Node) string {
	return node.Labels[corev1.LabelTopologyRegion] + "/" + node.Labels[corev1.LabelTopologyZone]
}

// judgeZones settles each zone's state and rate. Where no zone at all has a Node that is ready
// the fault is on our side: no Node is given up, and when one is heard of again, every Node is
// given the grace period again.
func (l *lifecycle) judgeZones(nodes []*corev1.Node, now time.Time) {
	type count struct{ ready, not int }
	counts := map[string]count{}
	for _, node := range nodes {
		c := counts[zoneOf(node)]
		if _, excluded := node.Labels[excludeLabel]; excluded {
			counts[zoneOf(node)] = c // it has a zone, and shows nothing of its state
			continue
		}
		if statusOf(node, corev1.NodeReady) == corev1.ConditionTrue {
			c.ready++
		} else {
			c.not++
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
		next := l.judge(c.ready, c.not)
		if next != z.state {
			l.Log.Info("zone changed", "zone", name, "state", next, "before", z.state, "ready", c.ready,
				"notReady", c.not)
			z.state = next
		}
		l.limit(z, c.ready+c.not)
		if c.ready+c.not > 0 {
			counted, allDisrupted = true, allDisrupted && next == full
		}
	}
	allDisrupted = allDisrupted && counted
	if l.disrupted && !allDisrupted {
		l.Log.Info("a node is ready again: every node is given its grace period again")
		l.hearAll(now)
	}
	l.disrupted = allDisrupted
}

func (l *lifecycle) judge(ready, not int) state {
	switch {
	case ready == 0 && not > 0:
		return full
	case not > 2 && float64(not)/float64(ready+not) >= l.settings.UnhealthyZoneThreshold:
		return partial
	}
	return normal
}

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

// mayGiveUp takes one of the zone's tokens, if there is one.
func (l *lifecycle) mayGiveUp(node *corev1.Node) bool {
	z := l.zones[zoneOf(node)]
	return !l.disrupted && z.rate > 0 && z.limiter.TryAccept()
}
