package core_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

const soundPod = `
metadata: {name: web, namespace: default}
spec:
  containers:
  - name: main
    image: nginx:1.29
    env:
    - {name: A, value: b}
    resources:
      limits: {cpu: "1", memory: 1Gi}
      requests: {cpu: 500m}
  initContainers:
  - {name: setup, image: busybox}
  - {name: proxy, image: envoy, restartPolicy: Always}
  tolerations:
  - {key: a, operator: Exists, effect: NoSchedule}
`

func TestPod_UpdateAllowsOnlyChangesThatARunningPodSupports(t *testing.T) {
	t.Parallel()
	kindtest.Update(t, "Pod", soundPod, []kindtest.Case{
		{"image", []string{"nginx:1.29", "nginx:1.28"}, nil},
		{"deadline", []string{"spec:", "spec:\n  activeDeadlineSeconds: 10"}, nil},
		{"toleration added", []string{"tolerations:", "tolerations:\n  - {key: z, operator: Exists}"}, nil},
		{"toleration changed", []string{"key: a,", "key: b,"}, []string{"Forbidden spec.tolerations"}},
		{"env", []string{"value: b", "value: c"}, []string{"Forbidden spec"}},
		{"resources", []string{"cpu: 500m", "cpu: 600m"}, []string{"Forbidden spec"}},
		{"container added", []string{"  initContainers:", "  - {name: second, image: a}\n  initContainers:"},
			[]string{"Forbidden spec.containers"}},
		{"node", []string{"spec:", "spec:\n  nodeName: n1"}, []string{"Forbidden spec"}},
		{"new gate", []string{"spec:", "spec:\n  schedulingGates: [{name: a.b/c}]"},
			[]string{"Forbidden spec.schedulingGates[0].name"}},
	})
}

func TestPod_GatedPodsMayOnlyBeNarrowed(t *testing.T) {
	t.Parallel()
	const gated = `
metadata: {name: web, namespace: default}
spec:
  schedulingGates: [{name: a}]
  nodeSelector: {x: y}
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
  containers: [{name: main, image: nginx}]
`
	const terms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
	kindtest.Update(t, "Pod", gated, []kindtest.Case{
		{"gate gone", []string{"[{name: a}]", "[]"}, nil},
		{"selector more", []string{"{x: y}", "{x: y, z: y}"}, nil},
		{"selector other", []string{"{x: y}", "{x: z}"}, []string{"Invalid spec.nodeSelector"}},
		{"expression more",
			[]string{"{key: a, operator: Exists}", "{key: a, operator: Exists}, {key: b, operator: Exists}"}, nil},
		{"expression other", []string{"key: a,", "key: b,"}, []string{"Invalid " + terms + "[0]"}},
		{"term more", []string{"[{matchExpressions:",
			"[{matchExpressions: [{key: z, operator: Exists}]}, {matchExpressions:"}, []string{"Invalid " + terms}},
	})
}

func TestPod_StatusStartsPendingWithItsQualityOfService(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "Pod")
	for requests, want := range map[string]corev1.PodQOSClass{
		"{}":                              corev1.PodQOSBestEffort,
		"{limits: {cpu: 1, memory: 1Gi}}": corev1.PodQOSGuaranteed,
		"{requests: {cpu: 1}}":            corev1.PodQOSBurstable,
	} {
		p := kindtest.Decode(t, r, "spec: {containers: [{name: a, image: b, resources: "+requests+"}]}").(*corev1.Pod)
		r.Status.Reset(p)
		require.Equal(t, corev1.PodPending, p.Status.Phase)
		require.Equal(t, want, p.Status.QOSClass, requests)
	}
	p := kindtest.Decode(t, r, "spec: {schedulingGates: [{name: a}], containers: [{name: a, image: b}]}").(*corev1.Pod)
	r.Status.Reset(p)
	require.Equal(t, "SchedulingGated", p.Status.Conditions[0].Reason)
}

func TestPod_DeleteGrace(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "Pod")
	running := func(change func(*corev1.Pod)) *corev1.Pod {
		p := kindtest.Decode(t, r, "spec: {nodeName: n, containers: [{name: a, image: b}]}").(*corev1.Pod)
		change(p)
		return p
	}
	keep := func(*corev1.Pod) {}
	for name, c := range map[string]struct {
		pod       *corev1.Pod
		requested *int64
		want      int64
	}{
		"its own":     {running(keep), nil, 30},
		"requested":   {running(keep), ptr.To[int64](5), 5},
		"at once":     {running(keep), ptr.To[int64](0), 0},
		"negative":    {running(keep), ptr.To[int64](-1), 1},
		"unscheduled": {running(func(p *corev1.Pod) { p.Spec.NodeName = "" }), nil, 0},
		"succeeded": {running(func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodSucceeded
		}), ptr.To[int64](9), 0},
		"failed":             {running(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), nil, 0},
		"without any period": {running(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = nil }), nil, 0},
	} {
		require.Equal(t, c.want, r.DeleteGrace(c.pod, c.requested), name)
	}
}

func TestPod_Cells(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "Pod")
	for name, c := range map[string]struct{ status, ready, want, restarts string }{
		"pending": {"{phase: Pending}", "0/2", "Pending", "0"},
		"running": {"{phase: Running, initContainerStatuses: [{name: setup, state: {terminated: {exitCode: " +
			"0}}}, {name: proxy, started: true, ready: true, state: {running: {}}}], containerStatuses: [{name: " +
			"main, ready: true, state: {running: {}}}]}", "2/2", "Running", "0"},
		"first init": {"{phase: Pending, initContainerStatuses: [{name: setup, state: {running: {}}}]}", "0/2",
			"Init:0/2", "0"},
		"init failed": {"{phase: Pending, initContainerStatuses: [{name: setup, restartCount: 2, state: " +
			"{terminated: {exitCode: 3}}}]}", "0/2", "Init:ExitCode:3", "2"},
		"init waiting": {"{phase: Pending, initContainerStatuses: [{name: setup, state: {waiting: {reason: " +
			"ImagePullBackOff}}}]}", "0/2", "Init:ImagePullBackOff", "0"},
		"crash loop": {"{phase: Running, containerStatuses: [{name: main, restartCount: 4, state: {waiting: " +
			"{reason: CrashLoopBackOff}}}]}", "0/2", "CrashLoopBackOff", "4"},
		"killed": {"{phase: Failed, containerStatuses: [{name: main, state: {terminated: {signal: 9, " +
			"exitCode: 137}}}]}", "0/2", "Signal:9", "0"},
		"evicted": {"{phase: Failed, reason: Evicted}", "0/2", "Evicted", "0"},
		"gated": {"{phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: " +
			"SchedulingGated}]}", "0/2", "SchedulingGated", "0"},
		"sidecar counts": {"{phase: Running, initContainerStatuses: [{name: setup, restartCount: 5, state: " +
			"{terminated: {exitCode: 0}}}, {name: proxy, restartCount: 1, started: true, ready: true, state: " +
			"{running: {}}}], containerStatuses: [{name: main, ready: true, restartCount: 2, state: {running: {}}}]}",
			"2/2", "Running", "3"},
	} {
		cells := r.Cells(kindtest.Decode(t, r, soundPod+"status: "+c.status))
		require.Equal(t, []any{"web", c.ready, c.want, c.restarts}, cells[:4], name)
	}
	deleted := kindtest.Decode(t, r, soundPod+"status: {phase: Running}")
	deleted.SetDeletionTimestamp(ptr.To(deleted.GetCreationTimestamp()))
	require.Equal(t, "Terminating", r.Cells(deleted)[2])
}
