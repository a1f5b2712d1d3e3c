package node

import (
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

// link is a connection of nodes to the API server. Either all nodes share one link, which watches all Nodes and all
// bound pods, so that thousands of nodes need only two watches. Or each node has a link with its own identity, which
// watches only its own Node and pods, because a node may see no others.
type link struct {
	client  kubernetes.Interface
	node    string // "" if it serves all nodes
	http    *http.Client
	factory *informer.Factory

	pods  corelisters.PodLister
	index cache.Indexer // of the pods, by node
	nodes corelisters.NodeLister
}

// byNode is the index of pods by the names of their nodes.
const byNode = "node"

// connect returns the links of the nodes.
func connect(config *rest.Config, o *Options) ([]*link, error) {
	if o.Identity == nil {
		l, err := newLink(config, "")
		return []*link{l}, err
	}
	var links []*link
	for _, name := range o.Names {
		identity, err := o.Identity(name)
		if err != nil {
			return nil, fmt.Errorf("identity of node %s: %w", name, err)
		}
		l, err := newLink(identity, name)
		if err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	return links, nil
}

func newLink(config *rest.Config, node string) (*link, error) {
	config = rest.CopyConfig(config)
	if config.QPS == 0 && config.RateLimiter == nil {
		config.QPS = -1 // the number of workers limits the load, and the server has flow control
	}
	if config.UserAgent == "" {
		config.UserAgent = "coxswain-node"
	}
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	client, err := kubernetes.NewForConfigAndClient(config, connections)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return &link{client: client, node: node, http: connections}, nil
}

// start starts the watches. only is the single node of the agent or link; "" if there are several.
func (l *link) start(ctx context.Context, a *agent, only string) ([]cache.DoneChecker, error) {
	l.factory = informer.NewFactory(l.client, informer.Options{Transform: dropManagedFields, Log: a.Log})
	selector := fields.OneTermNotEqualSelector("spec.nodeName", "")
	if only != "" {
		selector = fields.OneTermEqualSelector("spec.nodeName", only)
	}
	l.factory.Restrict(&corev1.Pod{}, func(o *metav1.ListOptions) { o.FieldSelector = selector.String() })
	if l.node != "" {
		l.factory.Restrict(&corev1.Node{}, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, l.node).String()
		})
	}
	core := l.factory.Core().V1()
	pods, nodes := core.Pods().Informer(), core.Nodes().Informer()
	l.pods, l.nodes, l.index = core.Pods().Lister(), core.Nodes().Lister(), pods.GetIndexer()
	err := pods.AddIndexers(cache.Indexers{byNode: func(o any) ([]string, error) {
		return []string{o.(*corev1.Pod).Spec.NodeName}, nil
	}})
	if err != nil {
		return nil, err
	}
	podHandler, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { a.podSeen(o.(*corev1.Pod)) },
		UpdateFunc: func(old, o any) {
			if old.(*corev1.Pod).UID != o.(*corev1.Pod).UID {
				a.podGone(old)
			}
			a.podSeen(o.(*corev1.Pod))
		},
		DeleteFunc: a.podGone,
	})
	if err != nil {
		return nil, err
	}
	nodeHandler, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { a.nodeSeen(o.(*corev1.Node), true) },
		UpdateFunc: func(old, o any) {
			recreated := old.(*corev1.Node).UID != o.(*corev1.Node).UID
			a.nodeSeen(o.(*corev1.Node), recreated)
		},
	})
	if err != nil {
		return nil, err
	}
	l.factory.StartWithContext(ctx)
	return []cache.DoneChecker{podHandler.HasSyncedChecker(), nodeHandler.HasSyncedChecker()}, nil
}

// close ends the watches and connections. The context of start must have ended.
func (l *link) close() {
	if l.factory != nil {
		l.factory.Shutdown()
	}
	if l.http != nil {
		utilnet.CloseIdleConnectionsFor(l.http.Transport)
	}
}

// dropManagedFields halves the memory of a pod. The agent does not use these fields.
func dropManagedFields(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}
