package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/client/events"
	"github.com/coxswain-dev/coxswain/internal/client/workqueue"
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
	"github.com/coxswain-dev/coxswain/node/podstate"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// agent runs all nodes of the process.
type agent struct {
	Options
	links        []*link
	runtime      runtime.Runtime
	components   runtime.Runtime // of the pods of Components
	imageless    bool            // the runtime has no images to pull
	cidrs        *cidrs
	nodes        map[string]*hostedNode // by name; the map never changes
	allocatable  corev1.ResourceList    // of each node
	missing      atomic.Int64           // number of nodes that have yet to be registered
	shuttingDown atomic.Bool
	thresholds   []threshold // for eviction
	mirrors      *mirrors
	staticDue    chan struct{} // of one element: static pods are due
	started      time.Time
	port         int32                           // of the endpoint; 0 if there is none
	serving      atomic.Pointer[tls.Certificate] // the endpoint's certificate, if none was configured

	byAddress sync.Map // the name of each node by its own address, a netip.Addr; empty without OwnAddresses

	podQueue  *workqueue.Queue[runtime.PodKey]
	nodeQueue *workqueue.Queue[nodeTask]
	events    *events.Recorder
	pulls     sync.WaitGroup // the goroutines of pulls, which workers of podQueue start
	pulling   atomic.Int64   // number of pulls in progress

	mu   sync.Mutex
	pods map[types.UID]*hostedPod // guarded by mu
}

// nodeTask is a task of a node. Node tasks have other workers than pods, so that heartbeats are on time however many
// pods there are to start.
type nodeTask struct {
	node string
	kind taskKind
}

// String implements fmt.Stringer.
func (t nodeTask) String() string {
	return [...]string{"node ", "the lease of node ", "the pressure on node ", "the storage of node "}[t.kind] + t.node
}

type taskKind int

const (
	syncNode taskKind = iota
	renewLease
	watchPressure
	limitStorage
)

// nodeWorkers returns the number of workers for the tasks of n nodes. With too few workers and a slow server,
// heartbeats would be late and nodes be considered lost, although a kubelet, which sends only its own heartbeats, would
// be on time.
func nodeWorkers(n int) int { return min(2*n, min(max(4, n/8), 128)) }

// newAgent returns an agent whose nodes share one link, or have one each, in the order of their names.
func newAgent(links []*link, o Options, newRuntime func(runtime.Host) (runtime.Runtime, error)) (*agent, error) {
	a := &agent{
		Options: o, links: links, started: o.Clock.Now(), allocatable: o.allocatable(),
		cidrs: newCIDRs(o.MaxPods), nodes: map[string]*hostedNode{}, pods: map[types.UID]*hostedPod{},
		staticDue: make(chan struct{}, 1),
	}
	for i, name := range o.Names {
		a.nodes[name] = &hostedNode{name: name, machineID: runtime.Digest("machine", name)[:32],
			link: links[i%len(links)]}
	}
	a.events = events.NewRecorder(func(node string) kubernetes.Interface {
		return a.nodes[node].client
	}, o.Clock, o.Log)
	a.thresholds, _ = o.Eviction.thresholds() // Options.complete has checked them
	a.mirrors = a.recordOfMirrors()
	a.missing.Store(int64(len(a.nodes)))
	if addresses, err := net.InterfaceAddrs(); err == nil && o.Runtime == Process {
		a.cidrs.avoid(addresses) // pods must not have addresses of this machine's networks
	}
	a.podQueue = newQueue(a, a.Clock, a.Workers, a.syncPod)
	// The periodic tasks of a Node, such as renewing its Lease, are its signs of life.
	a.nodeQueue = newQueue(a, virtualtime.Heartbeat(a.Clock), nodeWorkers(len(a.nodes)), a.doNode)
	var err error
	a.runtime, err = newRuntime(a)
	_, a.imageless = a.runtime.(runtime.Imageless)
	a.components = newComponentRuntime(o.Components, o.Clock.Now)
	return a, err
}

// newQueue returns a queue that calls do for each key until it succeeds. queueClock is the clock of delays.
func newQueue[T comparable](a *agent, queueClock clock.WithTicker, workers int,
	do func(context.Context, T) error) *workqueue.Queue[T] {
	var queue *workqueue.Queue[T]
	queue = workqueue.New(workqueue.Options{
		Workers: workers, MinRetry: 10 * time.Millisecond, MaxRetry: 10 * time.Second, Clock: queueClock,
	}, func(ctx context.Context, key T) {
		switch err := do(ctx, key); {
		case err == nil:
			queue.Forget(key)
		case ctx.Err() == nil:
			// The first failures are normal: a conflict, or a Node that does not have its CIDR yet.
			if queue.Retries(key) > 3 {
				a.Log.Warn("cannot complete a task, will retry", "err", err)
			}
			queue.Retry(key)
		}
	})
	return queue
}

// run runs the nodes until ctx ends and everything that was started has stopped. While the nodes shut down after that,
// their work continues, with a context of its own.
func (a *agent) run(ctx context.Context) error {
	lifetime := ctx
	ctx, cancel := context.WithCancel(context.WithoutCancel(lifetime))
	defer func() {
		cancel()
		a.runtime.Close()
		for _, l := range a.links {
			l.close()
		}
	}()
	var served *endpoint
	if a.Port >= 0 {
		e, err := a.listen()
		if err != nil {
			return fmt.Errorf("node: %w", err)
		}
		defer func() { _ = e.listener.Close() }()
		served = e
	}
	var synced []cache.DoneChecker
	for _, l := range a.links {
		only := l.node
		if len(a.Names) == 1 {
			only = a.Names[0]
		}
		begun, err := l.start(ctx, a, only)
		if err != nil {
			return err
		}
		synced = append(synced, begun...)
	}
	defer a.Quiescence.Add(a.busy)()
	if !cache.WaitFor(lifetime, "", synced...) {
		return nil
	}
	a.resume(lifetime)

	var workers sync.WaitGroup
	a.events.Start(ctx)
	if a.StaticPodPath != "" || len(a.Components) > 0 {
		workers.Go(func() { a.runStaticPods(ctx) })
	}
	if served != nil {
		workers.Go(func() { served.serve(ctx) })
		if a.ServerTLSBootstrap && !a.certified() {
			workers.Go(func() { a.keepCertified(ctx) })
		}
	}
	a.nodeQueue.Start(ctx)
	a.podQueue.Start(ctx)
	<-lifetime.Done()
	if a.ShutdownGracePeriod > 0 {
		a.shutDown(ctx)
	}
	cancel()
	a.nodeQueue.Wait()
	a.podQueue.Wait()
	a.pulls.Wait()
	a.events.Wait()
	workers.Wait()
	return nil
}

// busy describes work that the nodes have left; "" if there is none. It checks in the direction of the flow of work:
// from the informers to the queues, and from these to the Events.
func (a *agent) busy(revision int64) string {
	work := ""
	for _, l := range a.links {
		if work = l.factory.Busy(revision); work != "" {
			break
		}
	}
	work = cmp.Or(work, a.podQueue.Busy(), a.pullsBusy(), a.podQueue.Busy()) // pulls start from the queue and add to it
	if work = cmp.Or(work, a.nodeQueue.Busy(), a.events.Busy()); work != "" {
		work = "nodes: " + work
	}
	return work
}

func (a *agent) doNode(ctx context.Context, t nodeTask) error {
	n := a.nodes[t.node]
	switch t.kind {
	case renewLease:
		return a.heartbeat(ctx, n)
	case watchPressure:
		a.watchPressure(ctx, n)
		return nil
	case limitStorage:
		a.limitStorage(n)
		return nil
	}
	return a.syncNode(ctx, n)
}

// podSeen queues a pod that has changed. If it has to end, its calls of the runtime are cancelled at once.
func (a *agent) podSeen(pod *corev1.Pod) {
	n := a.nodes[pod.Spec.NodeName]
	if n == nil {
		return
	}
	if pod.DeletionTimestamp != nil || phaseEnded(pod.Status.Phase) {
		a.halt(pod.UID)
	}
	a.podQueue.AddAfter(runtime.KeyOf(pod), n.acts().Slow)
}

// podGone queues a pod that was removed.
func (a *agent) podGone(o any) {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	if pod, ok := o.(*corev1.Pod); ok {
		a.halt(pod.UID)
		a.podSeen(pod)
		if _, made := a.mirrors.record(pod); made {
			a.wakeStaticPods()
		}
	}
}

// nodeSeen records the pod CIDR of any Node. For a Node of this agent it queues the node's tasks: the periodic ones if
// the Node has just appeared.
func (a *agent) nodeSeen(node *corev1.Node, appeared bool) {
	if node.Spec.PodCIDR != "" {
		a.cidrs.note(node.Name, node.Spec.PodCIDR)
	}
	n := a.nodes[node.Name]
	if n == nil {
		return
	}
	if a.Runtime == Simulated && n.behave(node) {
		for _, pod := range a.podsOf(n) {
			a.podQueue.Add(runtime.KeyOf(pod))
		}
		appeared = true // heartbeats may begin again, and the node's usage may have changed
	}
	a.nodeQueue.Add(nodeTask{node.Name, syncNode})
	if appeared && node.Name == a.Names[0] {
		a.wakeStaticPods()
	}
	if appeared {
		a.nodeQueue.Add(nodeTask{node.Name, renewLease})
		if len(a.thresholds) > 0 {
			a.nodeQueue.Add(nodeTask{node.Name, watchPressure})
		}
		if _, ok := a.runtime.(runtime.Machine); ok {
			a.nodeQueue.Add(nodeTask{node.Name, limitStorage})
		}
	}
}

// resume prepares for existing objects: it queues every node, whether or not its Node object exists, and reserves the
// addresses and resources of existing pods before new pods can take them.
func (a *agent) resume(ctx context.Context) {
	for name, n := range a.nodes {
		if node, err := n.link.nodes.Get(name); err == nil {
			a.setSubnet(n, node.Spec.PodCIDR)
		}
		a.nodeQueue.Add(nodeTask{name, syncNode})
	}
	ctx, cancel := context.WithTimeout(ctx, setUpTimeout)
	defer cancel()
	uids := map[types.UID]bool{}
	for _, l := range a.links {
		pods, _ := l.pods.List(labels.Everything()) // a list from memory does not fail
		for _, pod := range pods {
			uids[pod.UID] = true
			if phaseEnded(pod.Status.Phase) && a.nodes[pod.Spec.NodeName] != nil {
				if err := a.tearDown(ctx, pod); err != nil {
					a.Log.Warn("cannot tear down a pod that has ended", "err", err)
				}
			}
			n := a.nodes[pod.Spec.NodeName]
			if a.isForged(pod) {
				continue // it reserves nothing, because it will be deleted
			}
			if n != nil && pod.Status.StartTime != nil && !phaseEnded(pod.Status.Phase) {
				n.account.note(pod.UID, demandOf(podstate.Allocated(pod)))
			}
			if n != nil && pod.Status.PodIP != "" && !pod.Spec.HostNetwork && !phaseEnded(pod.Status.Phase) {
				n.reserveAddress(pod.UID, pod.Status.PodIP)
			}
		}
	}
	a.runtime.Sweep(ctx, func(uid types.UID) bool { return uids[uid] })
}
