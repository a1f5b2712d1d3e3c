package routing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/client/informer"
	"github.com/coxswain-dev/coxswain/network/router"
)

// Options select the router, and the way it reaches other machines.
type Options struct {
	// Router is this machine's router. It is required.
	Router *router.Router
	// Nodes are the Nodes of this machine.
	Nodes []string
	// Mode is router.VXLAN or router.Routes. If empty, pods of other machines are not reachable.
	Mode string
	// Address is this machine's address for other machines. It is required with a Mode.
	Address netip.Addr
	// Balancers are networks of load balancers' addresses that the machine reaches by the router, like cluster IPs.
	Balancers []netip.Prefix
	// NodePorts makes the machine's own connections reach node ports at its own addresses.
	NodePorts bool
	// Clock is the clock for retries; nil selects the real one.
	Clock clock.Clock
	// Log receives the log lines; nil selects slog.Default.
	Log *slog.Logger
}

// retryEvery is the interval between retries after a failure.
const retryEvery = 5 * time.Second

// routes syncs the routes of a router.
type routes struct {
	Options
	nodes    corelisters.NodeLister
	services networkinglisters.ServiceCIDRLister
	ports    corelisters.ServiceLister // with Options.NodePorts
	changed  chan struct{}
	problems string // logged last
}

// Run syncs the routes until ctx ends. The routes stay. It returns early if the machine cannot have any.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	r := &routes{Options: o, changed: make(chan struct{}, 1)}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.Log == nil {
		r.Log = slog.Default()
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("routing: %w", err)
	}
	if o.Mode != "" {
		if err := o.Router.JoinPeers(o.Mode, o.Address); err != nil {
			return fmt.Errorf("routing: %w", err)
		}
	}
	factory := informer.NewFactory(client, informer.Options{Log: r.Log, Transform: onlyPorts})
	services, nodes := factory.Networking().V1().ServiceCIDRs(), factory.Core().V1().Nodes()
	r.services, r.nodes = services.Lister(), nodes.Lister()
	watched := []cache.SharedIndexInformer{services.Informer()}
	if o.Mode != "" {
		watched = append(watched, nodes.Informer())
	}
	if o.NodePorts {
		all := factory.Core().V1().Services()
		r.ports, watched = all.Lister(), append(watched, all.Informer())
	}
	var synced []cache.DoneChecker
	for _, i := range watched {
		if _, err := i.AddEventHandler(r.onChange()); err != nil {
			return fmt.Errorf("routing: %w", err)
		}
		synced = append(synced, i.HasSyncedChecker())
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	if cache.WaitFor(ctx, "", synced...) {
		r.keep(ctx)
	}
	return nil
}

func (r *routes) onChange() cache.ResourceEventHandler {
	changed := func() {
		select {
		case r.changed <- struct{}{}:
		default: // it is about to apply anyway
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(_, _ any) { changed() }, DeleteFunc: func(any) { changed() },
	}
}

// keep applies changes of the informers until ctx ends.
func (r *routes) keep(ctx context.Context) {
	for {
		another := r.Router.Changed()
		var again <-chan time.Time
		if err := r.apply(); err != nil {
			r.Log.Warn("failed to sync routes", "err", err)
			again = r.Clock.After(retryEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		case <-another:
		case <-again:
		}
	}
}

func (r *routes) apply() error {
	all, err := r.services.List(labels.Everything())
	if err != nil {
		return err
	}
	services := slices.Concat(rangesOf(all), r.Balancers)
	err = errors.Join(r.Router.ReachServices(services, r.Balancers...), r.reachNodePorts())
	if r.Mode == "" {
		return err
	}
	nodes, failed := r.nodes.List(labels.Everything())
	if failed != nil {
		return failed
	}
	peers, problems := peersOf(nodes, r.Nodes, r.Address, services)
	if text := strings.Join(problems, "; "); text != r.problems {
		r.problems = text
		if text != "" {
			r.Log.Warn("not routing conflicting pod CIDRs", "problems", text)
		}
	}
	return cmp.Or(r.Router.SetPeers(peers), err)
}

// rangesOf returns the ranges of cluster IPs.
func rangesOf(all []*networkingv1.ServiceCIDR) (ranges []netip.Prefix) {
	for _, s := range all {
		for _, text := range s.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				ranges = append(ranges, p.Masked())
			}
		}
	}
	slices.SortFunc(ranges, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Compact(ranges)
}
