package cni

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/internal/client/informer"
	"github.com/coxswain-dev/coxswain/network/routing"
)

// Node holds the fields of a Node that the network uses.
type Node struct {
	Subnets []netip.Prefix
	// Address is the first InternalIP, by which other machines reach this one; the zero Addr if the Node has none.
	Address netip.Addr
}

func (n Node) equal(other Node) bool {
	return n.Address == other.Address && slices.Equal(n.Subnets, other.Subnets)
}

// Follow calls run with the Node's fields, once the Node has subnets, until ctx ends or run returns by itself. When a
// field changes, it cancels run's context, waits for run to return and calls it again with the new Node. A deleted Node
// counts as unchanged, since its containers still exist. Follow returns the error of run.
func Follow(ctx context.Context, config *rest.Config, name string, run func(context.Context, Node) error) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informer.NewFactory(client, informer.Options{Tweak: func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}})
	nodes, changes := factory.Core().V1().Nodes(), make(chan Node, 1)
	see := func(object any) {
		n := nodeOf(object.(*corev1.Node))
		if len(n.Subnets) == 0 {
			slog.Info("the node has no podCIDRs yet", "node", name)
			return
		}
		select { // handlers run one after the other, so there is room afterwards
		case <-changes:
		default:
		}
		changes <- n
	}
	if _, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, now any) { see(now) }}); err != nil {
		return fmt.Errorf("follow node %s: %w", name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	defer cancel()
	return follow(ctx, changes, run)
}

func follow(ctx context.Context, changes <-chan Node, run func(context.Context, Node) error) error {
	var now Node
	select {
	case now = <-changes:
	case <-ctx.Done():
		return nil
	}
	for {
		next, err := runFor(ctx, now, changes, run)
		if next == nil {
			return err
		}
		now = *next
	}
}

// runFor calls run for one state of the Node. It returns the next state if the Node changed, or nil if run returned by
// itself.
func runFor(ctx context.Context, now Node, changes <-chan Node, run func(context.Context, Node) error) (*Node, error) {
	here, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(here, now) }()
	for {
		select {
		case err := <-ended:
			return nil, err
		case next := <-changes:
			if next.equal(now) {
				continue
			}
			cancel()
			if err := <-ended; err != nil {
				return nil, err
			}
			return &next, nil
		}
	}
}

func nodeOf(n *corev1.Node) Node {
	node := Node{Subnets: routing.PodCIDRs(n)}
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if address, err := netip.ParseAddr(a.Address); err == nil {
			node.Address = address
			break
		}
	}
	return node
}
