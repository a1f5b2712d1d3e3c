package nodeipam

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// metrics have the names of kube-controller-manager's.
type metrics struct {
	allocations, releases func() *prometheus.CounterVec
	tries                 func() *prometheus.HistogramVec
}

func (n *ipam) newMetrics(m *controller.Metrics) *metrics {
	const prefix = "node_ipam_controller_"
	m.State(prefix+"cirdset_max_cidrs", "Maximum number of CIDRs that can be allocated.", []string{"clusterCIDR"},
		func(add func(float64, ...string)) {
			for _, s := range n.sets {
				add(float64(s.count()), s.cluster.String())
			}
		})
	m.State(prefix+"cidrset_usage_cidrs", "Gauge measuring percentage of allocated CIDRs.", []string{"clusterCIDR"},
		func(add func(float64, ...string)) {
			nodes, _ := n.nodes.List(labels.Everything()) // a lister returns no errors
			for _, s := range n.sets {
				used := 0
				for _, node := range nodes {
					if s.of(node.Spec.PodCIDRs).IsValid() {
						used++
					}
				}
				add(float64(used)/float64(s.count()), s.cluster.String())
			}
		})
	return &metrics{
		allocations: m.Counter(prefix+"cidrset_cidrs_allocations_total",
			"Counter measuring total number of CIDR allocations.", "clusterCIDR"),
		releases: m.Counter(prefix+"cidrset_cidrs_releases_total",
			"Counter measuring total number of CIDR releases.", "clusterCIDR"),
		tries: m.Histogram(prefix+"cidrset_allocation_tries_per_request",
			"Number of CIDRs that were tried before a free one was found", prometheus.ExponentialBuckets(1, 5, 5),
			"clusterCIDR"),
	}
}

// of returns the first of the CIDRs that is a subnet of the cluster CIDR, or an invalid prefix.
func (s *subnets) of(cidrs []string) netip.Prefix {
	for _, text := range cidrs {
		if p, err := netip.ParsePrefix(text); err == nil && s.cluster.Contains(p.Addr()) {
			return p
		}
	}
	return netip.Prefix{}
}

// released counts the subnets of a Node that was deleted.
func (n *ipam) released(cidrs []string) {
	for _, s := range n.sets {
		if s.of(cidrs).IsValid() {
			n.metrics.releases().WithLabelValues(s.cluster.String()).Inc()
		}
	}
}
