// Package nodeipam assigns pod CIDRs to Nodes: one subnet of each cluster CIDR. A cluster has one cluster CIDR, or in a
// dual-stack cluster one of each family.
//
// The subnets in use are read from the Nodes, so that a restart loses no assignment. The subnets of a Node never
// change. A subnet of a deleted Node is assigned again only after all others.
// https://kubernetes.io/docs/reference/command-line-tools-reference/kube-controller-manager/
package nodeipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

type ipam struct {
	*controller.Controller
	env      *controller.Env
	nodes    corelisters.NodeLister
	recorder record.EventRecorder
	metrics  *metrics
	// Only the one worker accesses the following fields.

	sets []*subnets
	// assigned has subnets that the cached Nodes may not show yet, by the Node's name.
	assigned map[string][]netip.Prefix
	// pending has the names of Nodes that found no free subnet.
	pending map[string]bool
}

// New returns the controller. Its keys are Nodes. It has no effect unless Settings.NodeIPAM.Allocate is set.
func New(env *controller.Env) (*controller.Controller, error) {
	s := env.Settings.NodeIPAM
	nodes := env.Informers.Core().V1().Nodes()
	n := &ipam{
		env: env, nodes: nodes.Lister(), recorder: env.Recorder("cidrAllocator"),
		assigned: map[string][]netip.Prefix{}, pending: map[string]bool{},
	}
	n.Controller = controller.New(env, "nodeipam", n.reconcile)
	if !s.Allocate {
		return n.Controller, nil
	}
	var err error
	if n.sets, err = parse(s); err != nil {
		return nil, err
	}
	n.metrics = n.newMetrics(env.Metrics)
	controller.Watch(n.Controller, nodes.Informer(), controller.Handler[*corev1.Node]{
		Add: func(node *corev1.Node) { n.EnqueueObject(node) },
		Update: func(_, node *corev1.Node) {
			if len(node.Spec.PodCIDRs) == 0 {
				n.EnqueueObject(node)
			}
		},
		Delete: func(node *corev1.Node) {
			n.released(node.Spec.PodCIDRs)
			n.EnqueueObject(node)
		},
	})
	return n.Controller, nil
}

func (n *ipam) reconcile(ctx context.Context, name string) error {
	node, err := n.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		delete(n.assigned, name)
		delete(n.pending, name)
		for other := range n.pending {
			n.Enqueue(other)
		}
		return nil
	}
	if err != nil || node.DeletionTimestamp != nil {
		return err
	}
	if len(node.Spec.PodCIDRs) > 0 {
		delete(n.pending, name)
		return nil
	}
	return n.assign(ctx, node)
}

// assign chooses a subnet of each cluster CIDR for a Node and writes them to its spec.
func (n *ipam) assign(ctx context.Context, node *corev1.Node) error {
	used, err := n.used()
	if err != nil {
		return err
	}
	chosen := n.assigned[node.Name] // of an earlier write with a lost response, perhaps
	if chosen == nil {
		for _, s := range n.sets {
			subnet, tries, ok := s.next(used)
			if !ok {
				n.pending[node.Name] = true
				n.recorder.Eventf(reference(node), corev1.EventTypeNormal, "CIDRNotAvailable",
					"Node %s status is now: CIDRNotAvailable", node.Name)
				return nil // a deleted Node enqueues it again
			}
			n.metrics.tries().WithLabelValues(s.cluster.String()).Observe(float64(tries))
			chosen = append(chosen, subnet)
		}
	}
	n.assigned[node.Name] = chosen
	delete(n.pending, node.Name)
	cidrs := make([]string, len(chosen))
	for i, subnet := range chosen {
		cidrs[i] = subnet.String()
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"spec":     map[string]any{"podCIDR": cidrs[0], "podCIDRs": cidrs},
	})
	if err != nil {
		return err
	}
	_, err = n.env.Client().CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	switch {
	case err == nil:
		for _, s := range n.sets {
			n.metrics.allocations().WithLabelValues(s.cluster.String()).Inc()
		}
		return nil
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsInvalid(err), apierrors.IsConflict(err):
		// Another client has assigned subnets, or the name now belongs to another Node.
		delete(n.assigned, node.Name)
	}
	n.recorder.Eventf(reference(node), corev1.EventTypeNormal, "CIDRAssignmentFailed",
		"Node %s status is now: CIDRAssignmentFailed", node.Name)
	return fmt.Errorf("give node %s its pod CIDRs: %w", node.Name, err)
}

// reference returns the object reference of a Node for events. As in Kubernetes, it has the name as uid.
func reference(node *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: types.UID(node.Name)}
}

// used returns the subnets of all Nodes and the ranges of Services. If the cached state of a Node shows its
// subnets, used drops the Node's entry in assigned.
func (n *ipam) used() ([]netip.Prefix, error) {
	nodes, err := n.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var used []netip.Prefix
	for _, node := range nodes {
		if len(node.Spec.PodCIDRs) > 0 {
			delete(n.assigned, node.Name)
		}
		for _, text := range node.Spec.PodCIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				used = append(used, p.Masked())
			}
		}
	}
	for _, subnets := range n.assigned {
		used = append(used, subnets...)
	}
	return append(used, n.env.Settings.NodeIPAM.ServiceRanges...), nil
}

// parse validates the settings and returns the subnets of each cluster CIDR.
func parse(s controller.NodeIPAMSettings) ([]*subnets, error) {
	if len(s.ClusterCIDRs) == 0 {
		return nil, errors.New("--allocate-node-cidrs: needs --cluster-cidr")
	}
	if len(s.ClusterCIDRs) > 2 || len(s.ClusterCIDRs) == 2 &&
		s.ClusterCIDRs[0].Addr().Is4() == s.ClusterCIDRs[1].Addr().Is4() {
		return nil, errors.New("--cluster-cidr: one CIDR, or one of each family")
	}
	dual := len(s.ClusterCIDRs) == 2
	if dual && s.MaskSize != 0 {
		return nil, errors.New(
			"--node-cidr-mask-size: not in a dual-stack cluster, which has --node-cidr-mask-size-ipv4 and -ipv6")
	}
	var sets []*subnets
	for _, cidr := range s.ClusterCIDRs {
		size, flag := s.MaskSizeIPv4, "--node-cidr-mask-size-ipv4"
		if cidr.Addr().Is6() {
			size, flag = s.MaskSizeIPv6, "--node-cidr-mask-size-ipv6"
		}
		if !dual && s.MaskSize != 0 {
			size, flag = s.MaskSize, "--node-cidr-mask-size"
		}
		if size < cidr.Bits() || size > cidr.Addr().BitLen() || size-cidr.Bits() > 16 {
			return nil, fmt.Errorf("%s: /%d is no subnet of %s, or there are more than 65,536 of them",
				flag, size, cidr)
		}
		sets = append(sets, &subnets{cluster: cidr.Masked(), bits: size})
	}
	return sets, nil
}
