// Package nodewrites limits the writes of a node's agent. Its tables list every field that an agent may write and
// that affects other components. A compromised node writes arbitrary values: every component that reads such a
// field must be correct for each value that the row allows. The rows apply to agents alone (NodeRestriction), and
// reject only values that a kubelet never writes. For other users with the right, such as controllers, the API's
// validation applies.
//
// A test of package admission visits the fields of NodeStatus and PodStatus: it fails for a field without a row,
// and for a row without an attack by a node.
package nodewrites

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Cluster is the state that rows need. Objects are shared and must not be changed.
type Cluster interface {
	// Node returns a Node, nil if it does not exist.
	Node(ctx context.Context, name string) (*corev1.Node, error)
	Nodes(ctx context.Context) ([]*corev1.Node, error)
	ServiceCIDRs(ctx context.Context) ([]*networkingv1.ServiceCIDR, error)
	// PodsMentioning returns the pods that contain a text in their documents.
	PodsMentioning(ctx context.Context, text string) ([]*corev1.Pod, error)
}

// Row is one field of a status.
type Row[T any] struct {
	// Field is the field's name in JSON.
	Field string
	// ActedOnBy names the components that act on it, apart from people.
	ActedOnBy string
	// Bound describes the values that a node may write.
	Bound string
	// refuse returns an error for a change by the node that violates the bound. It is nil if the API's validation,
	// or the component that acts on the field, enforces it.
	refuse func(ctx context.Context, c Cluster, now, old T) error
}

// OfPod returns an error if a change of a pod's status by the agent of its node violates a bound.
func OfPod(ctx context.Context, c Cluster, now, old *corev1.Pod) error {
	return restrict(ctx, c, PodStatus, now, old)
}

// OfNode does the same as OfPod for a Node and its own agent. Before the registration, old is an empty Node.
func OfNode(ctx context.Context, c Cluster, now, old *corev1.Node) error {
	if err := refusePodCIDRs(ctx, c, now, old); err != nil {
		return err
	}
	return restrict(ctx, c, NodeStatus, now, old)
}

// restrict applies the rows of a table to a change.
func restrict[T any](ctx context.Context, c Cluster, table []Row[T], now, old T) error {
	for i := range table {
		if table[i].refuse == nil {
			continue
		}
		if err := table[i].refuse(ctx, c, now, old); err != nil {
			return fmt.Errorf("status.%s: %w", table[i].Field, err)
		}
	}
	return nil
}

// Others lists the other writes of nodes. NodeRestriction enforces the rows that do not name another component.
var Others = []struct {
	// Write is the resource, and the subresource or part of the object.
	Write string
	// ActedOnBy names the components that act on it, and Bound describes the writes that a node may make.
	ActedOnBy, Bound string
}{
	{"nodes metadata", "labels: the scheduler, DaemonSets, EndpointSlice hints; annotations: the agents of simulated " +
		"nodes, csrapproving (coxswain.dev/agent), the attach-detach controller",
		"its own Node; labels of Kubernetes' domains only from a list; owners never"},
	{"nodes spec.taints", "scheduler, taint-eviction", "at registration only"},
	{"nodes spec.podCIDRs", "routes of the pods' network, node-ipam",
		"once, and no range that overlaps with that of another Node or with those of Services"},
	{"nodes spec.configSource", "nothing", "never"},
	{"nodes spec.unschedulable", "scheduler, through its taint",
		"its own Node, as in Kubernetes: a node may uncordon itself"},
	{"pods", "kubelets, scheduler", "mirror pods on itself that name no other object; deletion of pods on itself"},
	{"pods/status metadata", "controllers that select by labels; readers of annotations",
		"labels and owners never; what marks a mirror pod never, by validation"},
	{"pods/eviction", "disruption budgets", "pods on itself"},
	{"serviceaccounts/token", "the API server, others that trust its tokens",
		"accounts of pods on itself, bound to these, for the audiences of their volumes"},
	{"leases", "node-lifecycle", "the Lease of its name in kube-node-lease"},
	{"csinodes", "scheduler, attach-detach", "the CSINode of its name"},
	{"resourceslices", "the scheduler of others", "slices of its own devices"},
	{"certificatesigningrequests", "csrapproving, csrsigning",
		"client certificates of itself; serving certificates as csrapproving decides"},
	{"podcertificaterequests", "signers of others", "pods on itself, from signers that their volumes name"},
	{"persistentvolumeclaims/status", "pv-expander, resource quotas", "claims of pods on itself (Node authorizer): " +
		"capacity, conditions and allocated resources, validated as quantities"},
}

// Limits of lists. A kubelet stays far below them.
const (
	MaxConditions = 200
	MaxAddresses  = 100
	MaxImages     = 5000
	MaxVolumes    = 5000
	MaxResources  = 1000
	MaxMessage    = 64 << 10
)

func bounded(n, limit int) error {
	if n > limit {
		return fmt.Errorf("must have at most %d items, not %d", limit, n)
	}
	return nil
}

func boundedText(text string) error {
	if len(text) > MaxMessage {
		return fmt.Errorf("must have at most %d bytes, not %d", MaxMessage, len(text))
	}
	return nil
}

var errImmutable = errors.New("a node may not change it")
