package plugins

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// testHandle is a framework.Handle without a scheduler. A test sets its filters.
type testHandle struct {
	client    *fake.Clientset
	informers informers.SharedInformerFactory
	clock     *clocktesting.FakeClock
	filters   []framework.FilterPlugin
	nominated []*framework.PodInfo
	events    []string
}

func newTestHandle(t testing.TB, objects ...runtime.Object) *testHandle {
	t.Helper()
	client := fake.NewClientset(objects...)
	return &testHandle{
		client: client, informers: informers.NewSharedInformerFactory(client, 0),
		clock: clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)),
	}
}

// start waits for the informers that the plugins' factories have requested.
func (h *testHandle) start(t testing.TB) {
	ctx, cancel := context.WithCancel(context.Background())
	h.informers.Start(ctx.Done())
	h.informers.WaitForCacheSync(ctx.Done())
	t.Cleanup(func() {
		cancel()
		h.informers.Shutdown()
	})
}

func (h *testHandle) Client() kubernetes.Interface                { return h.client }
func (h *testHandle) Informers() informers.SharedInformerFactory  { return h.informers }
func (h *testHandle) Clock() clock.WithTicker                     { return h.clock }
func (h *testHandle) Log() *slog.Logger                           { return slog.New(slog.DiscardHandler) }
func (h *testHandle) NominatedPods(string) []*framework.PodInfo   { return h.nominated }
func (h *testHandle) WaitingPod(*corev1.Pod) (func(string), bool) { return nil, false }
func (h *testHandle) Event(pod *corev1.Pod, _, reason, _, msg string) {
	h.events = append(h.events, pod.Name+" "+reason+" "+msg)
}

func (h *testHandle) Parallel(n int, f func(int)) {
	for i := range n {
		f(i)
	}
}

func (h *testHandle) FilterWithNominated(state *framework.CycleState, pod *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	for _, f := range h.filters {
		if status := f.Filter(state, pod, node); !status.OK() {
			return status
		}
	}
	return nil
}

func (h *testHandle) AddPod(state *framework.CycleState, pod, added *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	for _, f := range h.filters {
		if e, ok := f.(framework.PreFilterExtensions); ok {
			e.AddPod(state, pod, added, node)
		}
	}
	return nil
}

func (h *testHandle) RemovePod(state *framework.CycleState, pod, removed *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	for _, f := range h.filters {
		if e, ok := f.(framework.PreFilterExtensions); ok {
			e.RemovePod(state, pod, removed, node)
		}
	}
	return nil
}

// nodeList is a framework.Snapshot.
type nodeList []*framework.NodeInfo

func (l nodeList) Nodes() []*framework.NodeInfo                         { return l }
func (l nodeList) NodesWithAffinity() []*framework.NodeInfo             { return l }
func (l nodeList) NodesWithRequiredAntiAffinity() []*framework.NodeInfo { return l }

func (l nodeList) Node(name string) *framework.NodeInfo {
	for _, n := range l {
		if n.Node.Name == name {
			return n
		}
	}
	return nil
}

func (l nodeList) ImageNodes(name string) int {
	count := 0
	for _, n := range l {
		if _, ok := n.Images[name]; ok {
			count++
		}
	}
	return count
}

// labelled returns a node with a name, labels ("key", "value", …) and pods.
func labelled(name string, labels []string, pods ...*corev1.Pod) *framework.NodeInfo {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	for i := 0; i < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	info := framework.NewNodeInfo(n)
	for _, p := range pods {
		info.AddPod(framework.NewPodInfo(p))
	}
	return info
}
