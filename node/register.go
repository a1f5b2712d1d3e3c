package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// syncNode creates or adopts a Node and keeps its status up to date.
//
// As with a kubelet, a deleted Node is not created again until another client does so or the agent is restarted.
func (a *agent) syncNode(ctx context.Context, n *hostedNode) error {
	if n.acts().Stopped {
		return nil // nodeSeen queues the task again when the node continues
	}
	node, err := n.link.nodes.Get(n.name)
	if apierrors.IsNotFound(err) {
		if n.registered {
			return nil
		}
		return a.createNode(ctx, n)
	}
	if err != nil {
		return err
	}
	a.arrived(n)
	if node, err = a.adoptNode(ctx, n, node); err != nil {
		return fmt.Errorf("adopt node %s: %w", n.name, err)
	}
	a.setSubnet(n, node.Spec.PodCIDR)
	if m, ok := a.runtime.(runtime.Machine); ok {
		m.Connect(n.name)
	}
	if err := a.reportNode(ctx, n, node); err != nil {
		return fmt.Errorf("report status of node %s: %w", n.name, err)
	}
	if err := a.reclaimFolders(ctx, n, node); err != nil {
		return fmt.Errorf("reclaim folders of node %s: %w", n.name, err)
	}
	a.nodeQueue.AddAfter(nodeTask{n.name, syncNode}, a.StatusEvery)
	return nil
}

// createNode registers a node with its status, as the kubelet does. If the server drops a part of the status, it is
// written when the informer shows the Node.
func (a *agent) createNode(ctx context.Context, n *hostedNode) error {
	cidr, err := a.cidrs.choose(n.name)
	if err != nil {
		return err
	}
	status := a.nodeStatus(n, &corev1.NodeStatus{}, a.Clock.Now())
	if subnet, err := netip.ParsePrefix(cidr); err == nil {
		status.Addresses = a.addressesOf(n.name, subnet)
	}
	_, err = n.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: a.labels(n.name), Annotations: a.annotations(n.name)},
		Spec:       corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
		Status:     status,
	}, metav1.CreateOptions{})
	a.passOver(cidr, err)
	if err != nil && !apierrors.IsAlreadyExists(err) { // the informer will show an existing Node
		return fmt.Errorf("create node %s: %w", n.name, err)
	}
	a.arrived(n)
	a.Log.Info("node registered", "node", n.name)
	return nil
}

// passOver marks a pod CIDR as taken if the API server has rejected it, because it overlaps with that of a Node that
// this agent does not see. The next attempt chooses another one.
func (a *agent) passOver(cidr string, err error) {
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "spec.podCIDRs") {
		a.cidrs.note("another Node", cidr)
	}
}

// arrived records that a Node exists. Only the node's worker calls it.
func (a *agent) arrived(n *hostedNode) {
	if n.registered {
		return
	}
	n.registered = true
	if a.missing.Add(-1) == 0 && a.Ready != nil {
		a.Ready()
	}
}

// agentAnnotation names the Node whose serving certificate an agent of several Nodes presents. With it, a Node consents
// to that certificate for its own address. Only the Node's own agent and administrators can write it.
const agentAnnotation = "coxswain.dev/agent"

// annotations returns the annotations of a Node; nil if there are none.
func (a *agent) annotations(name string) map[string]string {
	if name == a.Names[0] || !a.ServerTLSBootstrap || a.certified() {
		return nil
	}
	return map[string]string{agentAnnotation: a.Names[0]}
}

// adoptNode adds the labels, the annotations and the pod CIDR that a Node lacks.
func (a *agent) adoptNode(ctx context.Context, n *hostedNode, node *corev1.Node) (*corev1.Node, error) {
	metadata, change, cidr := map[string]any{}, map[string]any{}, ""
	if labels := differing(node.Labels, a.labels(n.name)); len(labels) > 0 {
		metadata["labels"] = labels
	}
	if annotations := differing(node.Annotations, a.annotations(n.name)); len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	if len(metadata) > 0 {
		change["metadata"] = metadata
	}
	if node.Spec.PodCIDR == "" {
		var err error
		if cidr, err = a.cidrs.choose(n.name); err != nil {
			return nil, err
		}
		change["spec"] = map[string]any{"podCIDR": cidr, "podCIDRs": []string{cidr}}
	}
	if len(change) == 0 {
		return node, nil
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	node, err = n.client.CoreV1().Nodes().Patch(ctx, n.name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	a.passOver(cidr, err)
	return node, err
}

// differing returns the entries of desired that current does not have.
func differing(current, desired map[string]string) map[string]string {
	missing := map[string]string{}
	for key, value := range desired {
		if current[key] != value {
			missing[key] = value
		}
	}
	return missing
}

// reportNode writes the status if it has changed, or if StatusEvery has passed.
func (a *agent) reportNode(ctx context.Context, n *hostedNode, node *corev1.Node) error {
	now := a.Clock.Now()
	status := a.nodeStatus(n, &node.Status, now)
	if sameButForHeartbeat(&node.Status, &status) && now.Sub(lastHeartbeat(node)) < a.StatusEvery &&
		now.Sub(n.reported) < a.StatusEvery {
		return nil
	}
	before, err := json.Marshal(corev1.Node{Status: node.Status})
	if err != nil {
		return err
	}
	after, err := json.Marshal(corev1.Node{Status: status})
	if err != nil {
		return err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
	if err != nil {
		return err
	}
	_, err = n.client.CoreV1().Nodes().PatchStatus(ctx, n.name, patch)
	if err == nil {
		n.reported = now
	}
	return err
}

func lastHeartbeat(node *corev1.Node) time.Time {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.LastHeartbeatTime.Time
		}
	}
	return time.Time{}
}
