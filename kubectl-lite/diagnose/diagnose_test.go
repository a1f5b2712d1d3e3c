package diagnose_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
)

func object(text string) *unstructured.Unstructured {
	document, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		panic(err)
	}
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(document); err != nil {
		panic(err)
	}
	return obj
}

const replicaSet = `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: web, uid: web, ownerReferences: [{uid: a}]},
  spec: {replicas: 2}, status: {readyReplicas: 1}}`

func crashing(name string) *unstructured.Unstructured {
	return object(`{apiVersion: v1, kind: Pod, metadata: {name: ` + name + `, uid: ` + name + `, ownerReferences: [{uid: web}]},
  spec: {containers: [{name: c}]}, status: {phase: Running, containerStatuses: [{name: c, restartCount: 4,
  state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 7, reason: Error}}}]}}`)
}

// Two pods of a ReplicaSet keep crashing: that is one finding, and the likeliest.
func Example() {
	root := object(replicaSet)
	all := diagnose.Owned([]*unstructured.Unstructured{crashing("web-b"), crashing("web-a")})
	_, findings := diagnose.InspectAll(root, all, diagnose.Visited{}, time.Now())
	for _, f := range diagnose.Merge(append(findings, diagnose.NotReady(root))) {
		fmt.Println(f.Rank, f.Subject, f.Text, f.Others)
	}
	// Output:
	// crash Pod/web-a container c keeps ending with exit code 7 (Error), 4 restarts 1
	// summary ReplicaSet/web is not ready (1/2); it may still be on its way 0
}

func TestReadiness_IsReadFromAnyKind(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		replicaSet: {"1/2", "-"},
		`{kind: Pod, metadata: {deletionTimestamp: "2026-01-01T00:00:00Z"}, spec: {containers: [{}, {}]}}`: {"0/2",
			"Terminating"},
		`{kind: Widget, status: {conditions: [{type: Ready, status: "False", reason: Broken}]}}`: {"False", "Broken"},
		`{kind: ConfigMap}`: {"-", "-"},
	} {
		ready, status := diagnose.Readiness(object(text))
		require.Equal(t, want, [2]string{ready, status}, text)
	}
	require.False(t, diagnose.IsReady(object(replicaSet)))
	require.True(t, diagnose.IsReady(object(`{kind: ConfigMap}`)))
}

func TestInspectAll_EndsAtACycleOfOwners(t *testing.T) {
	t.Parallel()
	a := object(`{kind: Widget, metadata: {name: a, uid: a, ownerReferences: [{uid: b}]}}`)
	b := object(`{kind: Widget, metadata: {name: b, uid: b, ownerReferences: [{uid: a}]}}`)
	objects, findings := diagnose.InspectAll(a, diagnose.Owned([]*unstructured.Unstructured{a, b}), diagnose.Visited{},
		time.Now())
	require.Len(t, objects, 2)
	require.Empty(t, findings)
}

func TestNodeVerdict_SubtractsReservedResources(t *testing.T) {
	t.Parallel()
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			corev1.ResourcePods: resource.MustParse("9")}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Allocatable: list("2")}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(
			"2")}},
	}}}}
	require.Contains(t, diagnose.NodeVerdict(pod, node, nil), "has room for it")
	other := *pod.DeepCopy()
	other.Spec.NodeName = "n"
	require.Equal(t, "has 0 cpu free, but the pod requests 2",
		diagnose.NodeVerdict(pod, node, diagnose.Reserved([]corev1.Pod{other})["n"]))
}
