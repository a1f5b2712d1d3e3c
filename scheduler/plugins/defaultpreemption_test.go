package plugins

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// ranked returns a pod with a priority and a CPU request that was started some minutes ago.
func ranked(name string, priority int32, cpu string, minutes int) *corev1.Pod {
	p := pod(name, func(s *corev1.PodSpec) { s.Priority = &priority }, "cpu", cpu)
	p.Namespace, p.Labels = "default", map[string]string{"app": name}
	p.Status.StartTime = ptr.To(metav1.NewTime(time.Unix(1_800_000_000-int64(minutes)*60, 0)))
	return p
}

// fourCores returns a node with four cores.
func fourCores(name string, pods ...*corev1.Pod) *framework.NodeInfo {
	return node(func(n *corev1.Node) {
		n.Name = name
		n.Status.Allocatable["pods"] = list("pods", "10")["pods"]
	}, pods...)
}

// preemption runs the plugin for p, after NodeResourcesFit has rejected all nodes.
func preemption(t *testing.T, p *corev1.Pod, nodes nodeList, objects ...runtime.Object) (
	*testHandle, *framework.PostFilterResult, *framework.Status) {
	t.Helper()
	h := newTestHandle(t, objects...)
	fit := made[*NodeResourcesFit](t, "NodeResourcesFit", "")
	h.filters = []framework.FilterPlugin{fit}
	plugin, err := newDefaultPreemption(framework.Args{}, h)
	require.NoError(t, err)
	h.start(t)
	info := framework.NewPodInfo(p)
	diagnosis := &framework.Diagnosis{Total: len(nodes), NodeStatuses: map[string]*framework.Status{}}
	for _, n := range nodes {
		diagnosis.NodeStatuses[n.Node.Name] = fit.Filter(nil, info, n)
	}
	result, status := plugin.(*DefaultPreemption).PostFilter(t.Context(), &framework.CycleState{}, info,
		nodes, diagnosis)
	return h, result, status
}

func TestDefaultPreemption_ChoosesTheLeastHarm(t *testing.T) {
	t.Parallel()
	protects := func(app string) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: "default"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selects(app)},
		}
	}
	for _, tt := range []struct {
		name    string
		nodes   nodeList
		budgets []runtime.Object
		want    string
		victims int
	}{
		{"the only one", nodeList{fourCores("a", ranked("1", 0, "4", 1)), fourCores("b", ranked("2", 10, "4", 1))}, nil,
			"a", 1},
		{"no budget violated", nodeList{fourCores("a", ranked("1", 0, "4", 1)), fourCores("b", ranked("2", 5, "4", 1))},
			[]runtime.Object{protects("1")}, "b", 1},
		{"victims of lower priority", nodeList{fourCores("a", ranked("1", 2, "4", 1)),
			fourCores("b", ranked("2", 1, "4", 1))}, nil, "b", 1},
		{"a smaller sum of priorities", nodeList{fourCores("a", ranked("1", 2, "2", 1), ranked("2", 2, "2", 1)),
			fourCores("b", ranked("3", 2, "4", 1))}, nil, "b", 1},
		{"fewer victims, though negative", nodeList{fourCores("a", ranked("1", -2, "2", 1), ranked("2", -2, "2", 1)),
			fourCores("b", ranked("3", -2, "4", 1))}, nil, "b", 1},
		{"who has run shortest", nodeList{fourCores("a", ranked("1", 1, "4", 9)),
			fourCores("b", ranked("2", 1, "4", 5))}, nil, "b", 1},
		{"only as many as needed",
			nodeList{fourCores("a", ranked("1", 1, "1", 9), ranked("2", 2, "1", 9), ranked("3", 0, "2", 9))}, nil, "a",
			2},
		{"even where the budget is violated", nodeList{fourCores("a", ranked("1", 0, "4", 1))},
			[]runtime.Object{protects("1")}, "a", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, result, status := preemption(t, ranked("p", 10, "3", 0), tt.nodes, tt.budgets...)
			require.NoError(t, status.Err())
			require.Equal(t, tt.want, result.NominatedNodeName)
			require.Equal(t, tt.victims, result.Victims)
		})
	}
}

func TestDefaultPreemption_ReportsWhyItDoesNotHelp(t *testing.T) {
	t.Parallel()
	never := ranked("p", 10, "3", 0)
	never.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever)
	going := ranked("1", 0, "4", 1)
	going.DeletionTimestamp = &metav1.Time{}
	going.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: corev1.PodReasonPreemptionByScheduler}}
	nominated := ranked("p", 10, "3", 0)
	nominated.Status.NominatedNodeName = "a"
	for _, tt := range []struct {
		pod   *corev1.Pod
		nodes nodeList
		want  string
	}{
		{ranked("p", 10, "3", 0), nodeList{fourCores("a", ranked("1", 10, "4", 1)),
			fourCores("b", ranked("2", 99, "4", 1))},
			"preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."},
		{ranked("p", 10, "5", 0), nodeList{fourCores("a", ranked("1", 0, "4", 1)), fourCores("b")},
			"preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."},
		{ranked("p", 10, "3", 0), nodeList{fourCores("a", ranked("1", 0, "1", 1), ranked("2", 99, "2", 1))},
			"preemption: 0/1 nodes are available: 1 Insufficient cpu."},
		{never, nodeList{fourCores("a", ranked("1", 0, "4", 1))},
			"preemption: not eligible due to preemptionPolicy=Never."},
		{nominated, nodeList{fourCores("a", going)},
			"preemption: not eligible due to a terminating pod on the nominated node."},
	} {
		_, result, status := preemption(t, tt.pod, tt.nodes)
		require.Equal(t, []string{tt.want}, status.Reasons())
		if result != nil {
			require.Empty(t, result.NominatedNodeName)
		}
	}
}

func TestDefaultPreemption_DeletesTheVictimsAndRecordsEvents(t *testing.T) {
	t.Parallel()
	victim := ranked("victim", 0, "4", 1)
	p := ranked("p", 10, "3", 0)
	p.Spec.SchedulerName = "default-scheduler"
	h, result, status := preemption(t, p, nodeList{fourCores("a", victim)}, victim)
	require.NoError(t, status.Err())
	require.NoError(t, result.Then(context.Background()))
	_, err := h.client.CoreV1().Pods("default").Get(t.Context(), "victim", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)
	require.Equal(t, []string{"victim Preempted Preempted by pod p on node a"}, h.events)
	marked := false
	for _, action := range h.client.Actions() {
		marked = marked || action.GetVerb() == "patch" && action.GetSubresource() == "status"
	}
	require.True(t, marked, "the victim is told why it goes before it goes")
}

// A pod that waits for room on the node must look for another, unless its priority is as high as the preemptor's.
func TestDefaultPreemption_RemovesInvalidNominations(t *testing.T) {
	t.Parallel()
	p, victim := ranked("p", 10, "3", 0), ranked("victim", 0, "4", 1)
	waits := func(name string, priority int32, node string) *corev1.Pod {
		pod := ranked(name, priority, "1", 0)
		pod.Status.NominatedNodeName = node
		return pod
	}
	objects, infos := []runtime.Object{victim}, []*framework.PodInfo(nil)
	for _, pod := range []*corev1.Pod{waits("lower", 9, "a"), waits("equal", 10, "a"), waits("higher", 11, "a"),
		waits("unwritten", 9, "")} {
		objects, infos = append(objects, pod), append(infos, framework.NewPodInfo(pod))
	}
	h, result, status := preemption(t, p, nodeList{fourCores("a", victim)}, objects...)
	require.NoError(t, status.Err())
	h.nominated = infos
	require.NoError(t, result.Then(t.Context()))
	for name, want := range map[string]string{"lower": "", "equal": "a", "higher": "a", "unwritten": ""} {
		pod, err := h.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, want, pod.Status.NominatedNodeName, name)
	}
	var patched []string
	for _, action := range h.client.Actions() {
		if patch, ok := action.(clienttesting.PatchAction); ok {
			patched = append(patched, patch.GetName())
		}
	}
	require.Equal(t, []string{"victim", "lower"}, patched, "no other status is written")
}

// Another pod may have taken a victim's name meanwhile: each request must name the UID.
func TestDefaultPreemption_DeletesNoPodOfAnotherUID(t *testing.T) {
	t.Parallel()
	victim, going := ranked("victim", 0, "2", 1), ranked("going", 0, "2", 1)
	going.DeletionTimestamp = &metav1.Time{}
	h, result, status := preemption(t, ranked("p", 10, "4", 0), nodeList{fourCores("a", victim, going)}, victim)
	require.NoError(t, status.Err())
	require.NoError(t, result.Then(t.Context()))
	var requests []string
	for _, action := range h.client.Actions() {
		switch a := action.(type) {
		case clienttesting.PatchAction:
			var patch corev1.Pod
			require.NoError(t, json.Unmarshal(a.GetPatch(), &patch))
			requests = append(requests, "patch "+a.GetName()+" "+string(patch.UID))
		case clienttesting.DeleteActionImpl:
			require.NotNil(t, a.DeleteOptions.Preconditions)
			requests = append(requests, "delete "+a.GetName()+" "+string(*a.DeleteOptions.Preconditions.UID))
		}
	}
	uid := string(victim.UID)
	require.NotEmpty(t, uid)
	require.Equal(t, []string{"patch victim " + uid, "delete victim " + uid}, requests, "the other one is going already")
}
