package node

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// agent stands for all the nodes of the process.
type agent struct {
	Options
	links   []*link
	runtime containerRuntime
	cidrs   *cidrs
	nodes   map[string]*simNode // fixed
	missing atomic.Int64        // of them, how many have yet to be registered

	podQueue  workqueue.TypedRateLimitingInterface[podKey]
	nodeQueue workqueue.TypedRateLimitingInterface[nodeTask]
	events    *eventRecorder

	mu     sync.Mutex
	states map[types.UID]*podState
}

// nodeTask is a piece of work for a node. Heartbeats have workers of their own, so that they
// are on time however many pods there are to start.
type nodeTask struct {
	node string
	kind taskKind
}

type taskKind int

const (
	syncNode taskKind = iota
	renewLease
)

const nodeWorkers = 4

// newAgent is an agent whose nodes share one link, or have one each, in the order of their names.
func newAgent(links []*link, o Options, r containerRuntime) *agent {
	a := &agent{
		Options: o, links: links, runtime: r,
		cidrs: newCIDRs(o.MaxPods), nodes: map[string]*simNode{}, states: map[types.UID]*podState{},
	}
	for i, name := range o.Names {
		a.nodes[name] = &simNode{name: name, machineID: digest("machine", name)[:32], link: links[i%len(links)]}
	}
	a.events = newEventRecorder(func(node string) kubernetes.Interface { return a.nodes[node].client }, o.Clock, o.Log)
	a.missing.Store(int64(len(a.nodes)))
	a.podQueue = newQueue[podKey](a, "node_pods")
	a.nodeQueue = newQueue[nodeTask](a, "node_nodes")
	return a
}

func newQueue[T comparable](a *agent, name string) workqueue.TypedRateLimitingInterface[T] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[T](10*time.Millisecond, 10*time.Second),
		workqueue.TypedRateLimitingQueueConfig[T]{Name: name, Clock: a.Clock})
}

// run is the nodes until ctx ends and everything that was started has stopped.
func (a *agent) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for _, l := range a.links {
			l.close()
		}
	}()
	var synced []cache.InformerSynced
	for _, l := range a.links {
		alone := l.node
		if len(a.Names) == 1 {
			alone = a.Names[0]
		}
		begun, err := l.start(ctx, a, alone)
		if err != nil {
			return err
		}
		synced = append(synced, begun...)
	}
	defer a.podQueue.ShutDown()
	defer a.nodeQueue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	a.resume()

	var workers sync.WaitGroup
	workers.Go(func() { a.events.run(ctx) })
	for range min(nodeWorkers, 2*len(a.nodes)) {
		workers.Go(func() { work(a, a.nodeQueue, func(t nodeTask) error { return a.doNode(ctx, t) }) })
	}
	for range a.Workers {
		workers.Go(func() { work(a, a.podQueue, func(k podKey) error { return a.syncPod(ctx, k) }) })
	}
	<-ctx.Done()
	a.nodeQueue.ShutDown()
	a.podQueue.ShutDown()
	workers.Wait()
	return nil
}

// work does what a queue has until it is shut down.
func work[T comparable](a *agent, queue workqueue.TypedRateLimitingInterface[T], do func(T) error) {
	for {
		item, shutdown := queue.Get()
		if shutdown {
			return
		}
		switch err := do(item); {
		case err == nil:
			queue.Forget(item)
		case !queue.ShuttingDown():
			// The first failures are everyday: a conflict, a Node that has not its CIDR yet.
			if queue.NumRequeues(item) > 3 {
				a.Log.Warn("will retry", "err", err)
			}
			queue.AddRateLimited(item)
		}
		queue.Done(item)
	}
}

func (a *agent) doNode(ctx context.Context, t nodeTask) error {
	n := a.nodes[t.node]
	if t.kind == renewLease {
		return a.heartbeat(ctx, n)
	}
	return a.syncNode(ctx, n)
}

func (a *agent) podSeen(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	if pod, ok := o.(*corev1.Pod); ok && a.nodes[pod.Spec.NodeName] != nil {
		a.podQueue.Add(keyOf(pod))
	}
}

// nodeSeen takes note of a Node's pod CIDR, whose ever it is. The Lease of a Node that appears begins at once.
func (a *agent) nodeSeen(node *corev1.Node, appeared bool) {
	if node.Spec.PodCIDR != "" {
		a.cidrs.note(node.Name, node.Spec.PodCIDR)
	}
	if a.nodes[node.Name] == nil {
		return
	}
	a.nodeQueue.Add(nodeTask{node.Name, syncNode})
	if appeared {
		a.nodeQueue.Add(nodeTask{node.Name, renewLease})
	}
}

// resume prepares for work on what is there: every node wants looking at, whether it exists or not, and
// the addresses that pods have are taken before the first new one is given.
func (a *agent) resume() {
	for name, n := range a.nodes {
		if node, err := n.link.nodes.Get(name); err == nil {
			n.setCIDR(node.Spec.PodCIDR)
		}
		a.nodeQueue.Add(nodeTask{name, syncNode})
	}
	for _, l := range a.links {
		pods, _ := l.pods.List(labels.Everything()) // a list from memory does not fail
		for _, pod := range pods {
			n := a.nodes[pod.Spec.NodeName]
			if n != nil && pod.Status.PodIP != "" && !pod.Spec.HostNetwork && !phaseEnded(pod.Status.Phase) {
				n.reserveAddress(pod.UID, pod.Status.PodIP)
			}
		}
	}
}

// record sends the events that a pod's steps gave rise to.
func (a *agent) record(p *podState) {
	for _, e := range p.events {
		a.events.event(p.pod, e.kind, e.reason, e.message)
	}
	p.events = nil
}
