package controller

import "time"

// Settings are those of single controllers, by the names of kube-controller-manager's flags. What
// is zero has the default that is given with it.
type Settings struct {
	Node NodeSettings
}

// NodeSettings say how soon a Node that is silent is given up.
type NodeSettings struct {
	// MonitorPeriod is --node-monitor-period: how often every Node is looked at (5 s).
	MonitorPeriod time.Duration
	// MonitorGracePeriod is --node-monitor-grace-period: how long a Node may be silent before
	// its conditions become Unknown (50 s).
	MonitorGracePeriod time.Duration
	// StartupGracePeriod is --node-startup-grace-period: the same for one that has never
	// posted its status (60 s).
	StartupGracePeriod time.Duration
	// EvictionRate is --node-eviction-rate: how many Nodes of a zone are given up in a second (0.1).
	EvictionRate float32
	// SecondaryEvictionRate is --secondary-node-eviction-rate: the same where many Nodes of a
	// large zone are not ready (0.01). In a small zone it is none.
	SecondaryEvictionRate float32
	// LargeClusterSizeThreshold is --large-cluster-size-threshold: a zone of more Nodes is large (50).
	LargeClusterSizeThreshold int
	// UnhealthyZoneThreshold is --unhealthy-zone-threshold: the share of Nodes that are not
	// ready from which a zone counts as disrupted (0.55).
	UnhealthyZoneThreshold float64
}

// WithDefaults fills in what is zero.
func (s Settings) WithDefaults() Settings {
	n := &s.Node
	orDefault(&n.MonitorPeriod, 5*time.Second)
	orDefault(&n.MonitorGracePeriod, 50*time.Second)
	orDefault(&n.StartupGracePeriod, time.Minute)
	orDefault(&n.EvictionRate, 0.1)
	orDefault(&n.SecondaryEvictionRate, 0.01)
	orDefault(&n.LargeClusterSizeThreshold, 50)
	orDefault(&n.UnhealthyZoneThreshold, 0.55)
	return s
}

func orDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}
