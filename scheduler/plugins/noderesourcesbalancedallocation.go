package plugins

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// NodeResourcesBalancedAllocation prefers nodes that would have the same share of CPU and memory, or other
// resources, in use, so that no resource is stranded when another is exhausted.
type NodeResourcesBalancedAllocation struct{ resources []configv1.ResourceSpec }

func newNodeResourcesBalancedAllocation(args framework.Args, _ framework.Handle) (framework.Plugin, error) {
	var a configv1.NodeResourcesBalancedAllocationArgs
	if err := args.Decode(&a); err != nil {
		return nil, err
	}
	specs, errs := resourceSpecs(a.Resources, args.Path.Child("resources"), 1)
	return &NodeResourcesBalancedAllocation{specs}, errs.ToAggregate()
}

// Name implements framework.Plugin.
func (*NodeResourcesBalancedAllocation) Name() string { return "NodeResourcesBalancedAllocation" }

// PreScore implements framework.PreScorePlugin: a pod that requests none of them changes no balance.
func (p *NodeResourcesBalancedAllocation) PreScore(_ *framework.CycleState, pod *framework.PodInfo,
	_ []*framework.NodeInfo, _ framework.Snapshot) *framework.Status {
	for i := range p.resources {
		if pod.Requests.Of(corev1.ResourceName(p.resources[i].Name)) > 0 {
			return nil
		}
	}
	return skip
}

// Score implements framework.ScorePlugin: the smaller the standard deviation of the shares, the better.
func (p *NodeResourcesBalancedAllocation) Score(_ *framework.CycleState, pod *framework.PodInfo,
	node *framework.NodeInfo) int64 {
	var shares [16]float64
	n, sum := 0, 0.0
	for i := 0; i < len(p.resources) && n < len(shares); i++ {
		name := corev1.ResourceName(p.resources[i].Name)
		have, want := node.Allocatable.Of(name), pod.Requests.Of(name)
		if have == 0 || want == 0 && name != corev1.ResourceCPU && name != corev1.ResourceMemory {
			continue
		}
		shares[n] = min(1, float64(want+node.Requested.Of(name))/float64(have))
		sum += shares[n]
		n++
	}
	if n == 0 {
		return framework.MaxNodeScore
	}
	mean, squares := sum/float64(n), 0.0
	for _, share := range shares[:n] {
		squares += (share - mean) * (share - mean)
	}
	return int64((1 - math.Sqrt(squares/float64(n))) * float64(framework.MaxNodeScore))
}
