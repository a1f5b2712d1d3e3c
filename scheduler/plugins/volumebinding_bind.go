package plugins

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// How often the claims are checked while they are being bound.
const bindCheckInterval = 250 * time.Millisecond

// chosen returns the plan for the chosen node; nil if the pod has no delayed claims.
func chosen(state *framework.CycleState, node string) *volumePlan {
	s, ok := state.Read(volumeBindingKey).(*volumeState)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plans[node]
}

// Reserve implements framework.ReservePlugin: it reserves the volumes for the pod, and binds other users of its
// claims to the node.
func (p *VolumeBinding) Reserve(state *framework.CycleState, _ *framework.PodInfo, node string) *framework.Status {
	plan := chosen(state, node)
	if plan == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, v := range plan.bind {
		p.taken[v.Name] = key
	}
	for _, claim := range plan.provision {
		p.claimed[claimKey(claim)] = node
	}
	return nil
}

// Unreserve implements framework.ReservePlugin.
func (p *VolumeBinding) Unreserve(state *framework.CycleState, _ *framework.PodInfo, node string) {
	plan := chosen(state, node)
	if plan == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range plan.bind {
		delete(p.taken, v.Name)
	}
	for _, claim := range plan.provision {
		delete(p.claimed, claimKey(claim))
	}
}

// PreBindPreFlight implements framework.PreBindPlugin.
func (p *VolumeBinding) PreBindPreFlight(state *framework.CycleState, _ *framework.PodInfo,
	node string) *framework.Status {
	if chosen(state, node) == nil {
		return skip
	}
	return nil
}

// PreBind implements framework.PreBindPlugin. The PersistentVolume controller, or a provisioner, does the rest
// of the binding.
func (p *VolumeBinding) PreBind(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo,
	node string) *framework.Status {
	plan := chosen(state, node)
	if plan == nil {
		return nil
	}
	if err := p.write(ctx, plan, node); err != nil {
		return framework.AsError(p.Name(), err)
	}
	if err := p.awaitBound(ctx, plan, node); err != nil {
		return framework.AsError(p.Name(), fmt.Errorf("bind volumes: %w", err))
	}
	p.Unreserve(state, pod, node) // from here on the API server shows the choice
	return nil
}

// write writes the choice to the API server.
func (p *VolumeBinding) write(ctx context.Context, plan *volumePlan, node string) error {
	core := p.h.Client().CoreV1()
	for key, v := range plan.bind {
		claim, err := p.claim(key)
		if err != nil {
			return err
		}
		bound, changed, err := volume.GetBindVolumeToClaim(v, claim)
		if err != nil {
			return fmt.Errorf("bind volume %s to claim %s: %w", v.Name, key, err)
		}
		if changed {
			if _, err := core.PersistentVolumes().Update(ctx, bound, metav1.UpdateOptions{}); err != nil {
				return fmt.Errorf("bind volume %s to claim %s: %w", v.Name, key, err)
			}
		}
	}
	for _, claim := range plan.provision {
		if claim.Annotations[volume.AnnSelectedNode] == node {
			continue
		}
		claim = claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnSelectedNode, node)
		if _, err := core.PersistentVolumeClaims(claim.Namespace).Update(ctx, claim,
			metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("select node %s for claim %s: %w", node, claimKey(claim), err)
		}
	}
	return nil
}

func (p *VolumeBinding) claim(key string) (*corev1.PersistentVolumeClaim, error) {
	namespace, name := splitKey(key)
	return p.claims.PersistentVolumeClaims(namespace).Get(name)
}

// awaitBound waits until all claims of the plan are bound to volumes that the node can reach.
func (p *VolumeBinding) awaitBound(ctx context.Context, plan *volumePlan, node string) error {
	ticker := p.h.Clock().NewTicker(bindCheckInterval)
	defer ticker.Stop()
	timeout := p.h.Clock().NewTimer(p.timeout)
	defer timeout.Stop()
	for seen := false; ; seen = true {
		if done, err := p.allBound(plan, node, seen); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout.C():
			return fmt.Errorf("timed out after %s", p.timeout)
		case <-ticker.C():
		}
	}
}

// allBound reports whether all claims of the plan are bound. A provisioner that cannot help on the node removes the
// annotation, so that another node is chosen. Before the informer has shown the annotation once, its absence only
// means that the informer lags.
func (p *VolumeBinding) allBound(plan *volumePlan, node string, seen bool) (bool, error) {
	keys := make([]string, 0, len(plan.bind)+len(plan.provision))
	for key := range plan.bind {
		keys = append(keys, key)
	}
	for _, claim := range plan.provision {
		keys = append(keys, claimKey(claim))
	}
	all := true
	for i, key := range keys {
		claim, err := p.claim(key)
		if err != nil {
			return false, fmt.Errorf("claim %s: %w", key, err)
		}
		provisioned := i >= len(plan.bind)
		if provisioned && seen && !isBound(claim) {
			was := plan.provision[i-len(plan.bind)]
			if claim.ResourceVersion != was.ResourceVersion && claim.Annotations[volume.AnnSelectedNode] != node {
				return false, fmt.Errorf("claim %s: selectedNode annotation reset by PV controller or provisioner", key)
			}
		}
		all = all && isBound(claim)
	}
	return all, nil
}
