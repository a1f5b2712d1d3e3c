package nodelifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

// world has Nodes whose heartbeats and clock the test controls, and runs the rounds that check them.
type world struct {
	*testing.T
	*clocktesting.FakeClock
	*lifecycle
	client    *fake.Clientset
	informers *informer.Factory
	dead      map[string]bool
	behind    time.Duration // how far the Nodes' clocks are behind
}

// newWorld creates the given number of Nodes in each zone: "a" has a-0, a-1 and so on.
func newWorld(t *testing.T, zones map[string]int) *world {
	client := fake.NewClientset()
	w := &world{T: t, client: client, FakeClock: clocktesting.NewFakeClock(time.Now()), dead: map[string]bool{},
		informers: informer.NewFactory(client, informer.Options{})}
	env := &controller.Env{Client: func() kubernetes.Interface { return client }, Informers: w.informers,
		Clock: w.FakeClock, Log: slog.New(slog.DiscardHandler),
		Recorder: func(string) record.EventRecorder { return &record.FakeRecorder{} },
		Workers:  func(string) int { return 1 }, Settings: controller.Settings{}.WithDefaults()}
	for zone, n := range zones {
		for i := range n {
			w.create(fmt.Sprintf("%s-%d", zone, i), zone)
		}
	}
	l, err := newLifecycle(env)
	require.NoError(t, err)
	l.real = w
	w.lifecycle = l
	return w
}

func (w *world) create(name, zone string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
	w.ready(node)
	_, err := w.client.CoreV1().Nodes().Create(w.Context(), node, metav1.CreateOptions{})
	require.NoError(w, err)
}

func (w *world) ready(node *corev1.Node) {
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		LastHeartbeatTime: metav1.NewTime(w.Now().Add(-w.behind))}}
}

// pass runs rounds for d, one each MonitorPeriod. All Nodes except the dead ones renew their Leases before each.
func (w *world) pass(d time.Duration) {
	w.Helper()
	for ; d > 0; d -= w.settings.MonitorPeriod {
		w.Step(w.settings.MonitorPeriod)
		w.runRound()
	}
}

// runRound updates the caches and runs one round.
func (w *world) runRound() {
	w.Helper()
	nodes, leases := w.informers.Core().V1().Nodes().Informer().GetIndexer(),
		w.informers.Coordination().V1().Leases().Informer().GetIndexer()
	list, err := w.client.CoreV1().Nodes().List(w.Context(), metav1.ListOptions{})
	require.NoError(w, err)
	for _, node := range list.Items {
		require.NoError(w, nodes.Add(&node))
		if !w.dead[node.Name] {
			now := metav1.NewMicroTime(w.Now().Add(-w.behind))
			require.NoError(w,
				leases.Add(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node.Name,
					Namespace: corev1.NamespaceNodeLease},
					Spec: coordinationv1.LeaseSpec{RenewTime: &now}}))
		}
	}
	require.NoError(w, w.round(w.Context()))
}

func (w *world) die(names ...string) {
	for _, name := range names {
		w.dead[name] = true
	}
}

// revive posts the status of the Nodes, as their agents do when they come back.
func (w *world) revive(names ...string) {
	for _, name := range names {
		delete(w.dead, name)
		node, err := w.client.CoreV1().Nodes().Get(w.Context(), name, metav1.GetOptions{})
		require.NoError(w, err)
		w.ready(node)
		_, err = w.client.CoreV1().Nodes().UpdateStatus(w.Context(), node, metav1.UpdateOptions{})
		require.NoError(w, err)
	}
}

// tainted returns the names of the Nodes with a NoExecute taint of this key.
func (w *world) tainted(key string) []string {
	return w.namesOf(func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == key && t.Effect == corev1.TaintEffectNoExecute
		})
	})
}

// unknown returns the names of the Nodes whose condition Ready is Unknown.
func (w *world) unknown() []string {
	return w.namesOf(func(n *corev1.Node) bool { return statusOf(n, corev1.NodeReady) == corev1.ConditionUnknown })
}

func (w *world) namesOf(selected func(*corev1.Node) bool) []string {
	list, err := w.client.CoreV1().Nodes().List(w.Context(), metav1.ListOptions{})
	require.NoError(w, err)
	names := []string{}
	for i := range list.Items {
		if selected(&list.Items[i]) {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

func TestRound_TaintsANodeWithoutHeartbeatsUntilItComesBack(t *testing.T) {
	w := newWorld(t, map[string]int{"a": 3})
	w.runRound()
	w.die("a-1")
	w.pass(50 * time.Second)
	require.Empty(t, w.unknown())
	w.pass(5 * time.Second)
	require.Equal(t, []string{"a-1"}, w.unknown())
	require.Equal(t, []string{"a-1"}, w.tainted(corev1.TaintNodeUnreachable))
	node, err := w.client.CoreV1().Nodes().Get(t.Context(), "a-1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "NodeStatusUnknown", condition(node, corev1.NodeReady).Reason)
	require.Equal(t, "NodeStatusNeverUpdated", condition(node, corev1.NodeDiskPressure).Reason)

	w.revive("a-1")
	w.pass(5 * time.Second)
	require.Empty(t, w.unknown())
	require.Empty(t, w.tainted(corev1.TaintNodeUnreachable))
}

// A Node that reports itself that it is not ready gets another taint when its heartbeats stop.
func TestRound_DistinguishesNotReadyFromUnreachable(t *testing.T) {
	w := newWorld(t, map[string]int{"a": 3})
	node, err := w.client.CoreV1().Nodes().Get(t.Context(), "a-0", metav1.GetOptions{})
	require.NoError(t, err)
	node.Status.Conditions[0].Status = corev1.ConditionFalse
	_, err = w.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	w.runRound()
	require.Equal(t, []string{"a-0"}, w.tainted(corev1.TaintNodeNotReady))
	w.die("a-0")
	w.pass(time.Minute)
	require.Empty(t, w.tainted(corev1.TaintNodeNotReady))
	require.Equal(t, []string{"a-0"}, w.tainted(corev1.TaintNodeUnreachable))
}

func TestRound_WaitsLongerForANodeThatNeverPostedItsStatus(t *testing.T) {
	w := newWorld(t, map[string]int{"a": 1})
	_, err := w.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "new"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	w.die("new")
	w.runRound()
	w.pass(time.Minute)
	require.Empty(t, w.unknown())
	w.pass(5 * time.Second)
	require.Equal(t, []string{"new"}, w.unknown())
}

func TestRound_TaintsOneNodeInTenSeconds(t *testing.T) {
	w := newWorld(t, map[string]int{"a": 10})
	w.runRound()
	w.die("a-0", "a-1", "a-2", "a-3")
	w.pass(55 * time.Second)
	require.Len(t, w.unknown(), 4)
	for n := 1; n <= 4; n++ {
		require.Len(t, w.tainted(corev1.TaintNodeUnreachable), n)
		w.pass(10 * time.Second)
	}
}

func TestRound_LimitsEvictionsOfADisruptedZone(t *testing.T) {
	t.Run("small: no Node is tainted", func(t *testing.T) {
		w := newWorld(t, map[string]int{"a": 5, "b": 5})
		w.runRound()
		w.die("a-0", "a-1", "a-2", "b-0")
		w.pass(10 * time.Minute)
		require.Equal(t, []string{"b-0"}, w.tainted(corev1.TaintNodeUnreachable))
	})
	t.Run("large: one in a hundred seconds", func(t *testing.T) {
		w := newWorld(t, map[string]int{"a": 60})
		w.runRound()
		for i := range 40 {
			w.die(fmt.Sprintf("a-%d", i))
		}
		w.pass(55 * time.Second)
		require.Len(t, w.tainted(corev1.TaintNodeUnreachable), 1)
		w.pass(210 * time.Second)
		require.Len(t, w.tainted(corev1.TaintNodeUnreachable), 3)
	})
	t.Run("all of one zone: at the usual rate", func(t *testing.T) {
		w := newWorld(t, map[string]int{"a": 3, "b": 3})
		w.runRound()
		w.die("a-0", "a-1", "a-2")
		w.pass(55 * time.Second)
		require.Len(t, w.tainted(corev1.TaintNodeUnreachable), 1)
		w.pass(20 * time.Second)
		require.Len(t, w.tainted(corev1.TaintNodeUnreachable), 3)
	})
}

func TestRound_TaintsNoNodeIfNoneIsReady(t *testing.T) {
	w := newWorld(t, map[string]int{"a": 4, "b": 2})
	w.runRound()
	w.die("b-0")
	w.pass(time.Minute)
	require.Equal(t, []string{"b-0"}, w.tainted(corev1.TaintNodeUnreachable))
	w.die("a-0", "a-1", "a-2", "a-3", "b-1")
	w.pass(10 * time.Minute)
	require.Len(t, w.unknown(), 6)
	require.Empty(t, w.tainted(corev1.TaintNodeUnreachable), "existing taints are removed")

	w.revive("a-0", "a-1", "a-2", "a-3")
	w.pass(5 * time.Second)
	require.Len(t, w.unknown(), 2)
	w.revive("b-1")
	w.pass(time.Minute)
	require.Equal(t, []string{"b-0"}, w.tainted(corev1.TaintNodeUnreachable))
}

// A fake clock jumps from timer to timer: no periodic round may happen between the last heartbeat and the end of the
// grace period.
func TestRound_RunsWhenTheGracePeriodEnds(t *testing.T) {
	w := newWorld(t, map[string]int{"a": 3})
	w.real = clocktesting.NewFakePassiveClock(w.Now())
	w.runRound()
	w.die("a-1")
	w.pass(w.settings.MonitorPeriod)
	require.Empty(t, w.unknown())
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); w.Wait() })
	w.Start(ctx)
	w.Step(w.settings.MonitorGracePeriod)
	require.Eventually(t, func() bool { return len(w.unknown()) == 1 }, time.Minute, time.Millisecond)
	require.Equal(t, []string{"a-1"}, w.unknown())
}

// The control plane was suspended, the Nodes were not.
func TestRound_RestartsGracePeriodsAfterTheControllerWasSuspended(t *testing.T) {
	w := newWorld(t, map[string]int{"a": 3})
	w.runRound()
	w.die("a-0", "a-1", "a-2")
	w.Step(time.Hour)
	w.runRound()
	require.Empty(t, w.unknown())
	w.dead = map[string]bool{}
	w.pass(time.Minute)
	require.Empty(t, w.unknown())
}

// A Node with the label exclude-disruption does not count for the state of its zone, and is tainted like any other.
func TestRound_DoesNotCountExcludedNodes(t *testing.T) {
	w := newWorld(t, map[string]int{"a": 3})
	for i := range 6 {
		name := fmt.Sprintf("spot-%d", i)
		w.create(name, "a")
		node, err := w.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		node.Labels["node.kubernetes.io/exclude-disruption"] = ""
		_, err = w.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	w.runRound()
	w.die("spot-0", "spot-1", "spot-2", "spot-3", "spot-4", "spot-5")
	w.pass(3 * time.Minute)
	require.Len(t, w.tainted(corev1.TaintNodeUnreachable), 6)
}

func TestRound_AcceptsHeartbeatsOfAClockThatStepsBack(t *testing.T) {
	for _, behind := range []time.Duration{time.Hour, -time.Hour} {
		w := newWorld(t, map[string]int{"a": 3})
		w.runRound()
		w.behind = behind
		w.pass(10 * time.Minute)
		w.behind = 0
		w.pass(10 * time.Minute)
		require.Empty(t, w.unknown())
	}
}

// The agents only post their status and renew no Leases: that is a heartbeat too.
func TestRound_AcceptsStatusHeartbeatsOfAClockThatStepsBack(t *testing.T) {
	for _, behind := range []time.Duration{time.Hour, -time.Hour} {
		w := newWorld(t, map[string]int{"a": 3})
		w.die("a-0", "a-1", "a-2")
		w.runRound()
		for _, w.behind = range []time.Duration{behind, 0} {
			for range 10 {
				w.revive("a-0", "a-1", "a-2")
				w.die("a-0", "a-1", "a-2")
				w.pass(w.settings.MonitorGracePeriod - w.settings.MonitorPeriod)
				require.Empty(t, w.unknown())
			}
		}
	}
}

func TestRound_TakesNoHeartbeatFromALeaseWithoutTimeOrChange(t *testing.T) {
	w := newWorld(t, map[string]int{"a": 3})
	w.runRound()
	w.die("a-0", "a-1")
	for name, renewed := range map[string]*metav1.MicroTime{"a-0": nil, "a-1": new(metav1.NewMicroTime(w.Now()))} {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
			Spec: coordinationv1.LeaseSpec{RenewTime: renewed}}
		require.NoError(t, w.informers.Coordination().V1().Leases().Informer().GetIndexer().Add(lease))
	}
	w.pass(w.settings.MonitorGracePeriod + 2*w.settings.MonitorPeriod)
	require.Equal(t, []string{"a-0", "a-1"}, w.unknown())
}
