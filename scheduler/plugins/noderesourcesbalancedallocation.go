package plugins

import (
	"math"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// NodeResourcesBalancedAllocation prefers nodes whose CPU and memory would be used to the same share,
// so that neither is stranded when the other has run out.
type NodeResourcesBalancedAllocation struct{}

// Name implements framework.Plugin.
func (NodeResourcesBalancedAllocation) Name() string { return "NodeResourcesBalancedAllocation" }

// PreScore implements framework.PreScorePlugin: a pod that requests neither changes no balance.
func (NodeResourcesBalancedAllocation) PreScore(_ *framework.CycleState, pod *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	if pod.Requests.MilliCPU == 0 && pod.Requests.Memory == 0 {
		return skip
	}
	return nil
}

// Score implements framework.ScorePlugin. The standard deviation of two shares is half their distance.
func (NodeResourcesBalancedAllocation) Score(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) int64 {
	if node.Allocatable.MilliCPU <= 0 || node.Allocatable.Memory <= 0 {
		return framework.MaxNodeScore
	}
	cpu := share(pod.Requests.MilliCPU+node.Requested.MilliCPU, node.Allocatable.MilliCPU)
	memory := share(pod.Requests.Memory+node.Requested.Memory, node.Allocatable.Memory)
	return int64((1 - math.Abs(cpu-memory)/2) * float64(framework.MaxNodeScore))
}

func share(used, have int64) float64 { return min(1, float64(used)/float64(have)) }
