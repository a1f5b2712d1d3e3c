package why_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/testenv"
)

// answered are the parts of an answer that differ between runs.
var answered = regexp.MustCompile(`\d+s ago|\d+s old`)

// ask runs why and returns its exit code and output, with … for ages.
func ask(t *testing.T, l clitest.Live, object string) (int, string) {
	t.Helper()
	got := l.Run(t, "", "why "+object)
	require.Empty(t, got.ErrOut)
	return got.Code, answered.ReplaceAllString(got.Out, "… ago")
}

const (
	storageClass = "{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: %s}, provisioner: %s, " +
		"volumeBindingMode: %s}\n---\n"
	claim = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: %s}, spec: {accessModes: [ReadWriteOnce], " +
		"storageClassName: %s, resources: {requests: {storage: 1Gi}}}}\n---\n"
	consumer = "{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {containers: [{name: c, image: i, resources: " +
		"{requests: {cpu: %q}}}], volumes: [{name: v, persistentVolumeClaim: {claimName: %s}}]%s}}\n---\n"
)

// TestWhy_BlamesThePodForAClaimThatWaitsForIt runs controllers and the scheduler: a pod and its claim wait for each
// other, and the answer is the same for both.
func TestWhy_BlamesThePodForAClaimThatWaitsForIt(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t)
	l.Succeed(t, "{apiVersion: v1, kind: Node, metadata: {name: agentless}, spec: {unschedulable: true}}\n---\n"+
		fmt.Sprintf(storageClass, "late", "example.com/disks", "WaitForFirstConsumer")+
		fmt.Sprintf(claim, "data", "late")+fmt.Sprintf(consumer, "big", "9000", "data", "")+
		fmt.Sprintf(claim, "unused", "late")+
		fmt.Sprintf(claim, "aside", "late")+fmt.Sprintf(consumer, "direct", "1m", "aside", ", nodeName: agentless")+
		fmt.Sprintf(claim, "slow", "late")+fmt.Sprintf(consumer, "patient", "1m", "slow", "")+
		fmt.Sprintf(storageClass, "disks", "kubernetes.io/no-provisioner", "WaitForFirstConsumer")+
		fmt.Sprintf(claim, "disk", "disks")+fmt.Sprintf(consumer, "homeless", "1m", "disk", ""), "create -f -")
	for object, want := range map[string]string{
		"pod/big": `Likely cause:
  Pod/big cannot be scheduled: 0/2 nodes are available: 1 Insufficient cpu`,
		"pvc/data": `Likely cause:
  Pod/big cannot be scheduled: 0/2 nodes are available: 1 Insufficient cpu`,
		"pvc/unused": "Likely cause:\n  PersistentVolumeClaim/unused is Pending: it gets its volume when a pod that uses " +
			"it has a node (StorageClass/late waits for the first consumer), and no pod uses it\n",
		"pod/direct": "Likely cause:\n  Pod/direct needs PersistentVolumeClaim/aside, for which the scheduler must " +
			"choose a node, and bypasses the scheduler: it was created with spec.nodeName\n",
		"pvc/aside": "Likely cause:\n  PersistentVolumeClaim/aside is Pending: the scheduler must choose a node for a " +
			"pod that uses it (StorageClass/late waits for the first consumer), but Pod/direct bypasses the scheduler: " +
			"it was created with spec.nodeName\n",
		"pod/patient": "Likely cause:\n  Pod/patient needs PersistentVolumeClaim/slow, which is Pending: Waiting for a " +
			"volume to be created either by the external provisioner 'example.com/disks'",
		"pvc/slow": "Likely cause:\n  PersistentVolumeClaim/slow is Pending: Waiting for a volume to be created either " +
			"by the external provisioner 'example.com/disks'",
		"pod/homeless": "Likely cause:\n  Pod/homeless needs PersistentVolumeClaim/disk, which is Pending: " +
			"StorageClass/disks makes no volumes, and it has no PersistentVolume that is available\n",
		"pvc/disk": "Likely cause:\n  PersistentVolumeClaim/disk is Pending: StorageClass/disks makes no volumes, and " +
			"it has no PersistentVolume that is available\n",
	} {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			got := l.Run(t, "", "why "+object)
			require.Equal(c, 1, got.Code)
			require.Contains(c, got.Out, want)
			require.NotContains(c, got.Out, "waits for the scheduler", object)
		}, 30*time.Second, 100*time.Millisecond, object)
	}
	_, out := ask(t, l, "pvc/data")
	require.Contains(t, out, "Also:\n  PersistentVolumeClaim/data is Pending: it gets its volume when Pod/big has a "+
		"node (StorageClass/late waits for the first consumer)\n")
	require.Contains(t, out, "cpu free, but the pod requests 9k", "the verdicts on nodes are about the claim's pod")
	_, out = ask(t, l, "-n default")
	require.Equal(t, 1, strings.Count(out, "PersistentVolumeClaim/data "), out)
}

// TestWhy_SaysReadyOnlyWithProof asks about objects that report no fault, and are not all ready for it.
func TestWhy_SaysReadyOnlyWithProof(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t, testenv.APIServerOnly())
	const job = "{apiVersion: batch/v1, kind: Job, metadata: {name: %s}, spec: {completions: 3, template: {spec: " +
		"{restartPolicy: Never, containers: [{name: c, image: i}]}}}}\n---\n"
	const cronJob = "{apiVersion: batch/v1, kind: CronJob, metadata: {name: %s}, spec: {schedule: '0 4 * * *', " +
		"jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}}\n---\n"
	const deployment = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: %s}, spec: {replicas: %d, selector: " +
		"{matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: " +
		"i}]}}}}\n---\n"
	const server = "{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: %[1]s}}, spec: {containers: [{name: " +
		"c, image: i, ports: [{name: http, containerPort: 8080}]}]}}\n---\n"
	const service = "{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {%sports: [{port: 80, targetPort: " +
		"%s}]}}\n---\n"
	const endpoints = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s, labels: " +
		"{kubernetes.io/service-name: %[1]s}}, addressType: IPv4, endpoints: [{addresses: [10.0.0.9], conditions: " +
		"{ready: %t}}]}\n---\n"
	const budget = "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: %s}, spec: {minAvailable: 2, " +
		"selector: {matchLabels: {app: nothing}}}}\n---\n"
	const running = `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"},` +
		`{"type":"ContainersReady","status":"True"}],"containerStatuses":[{"name":"c","image":"i","imageID":"",` +
		`"ready":true,"restartCount":0,"state":{"running":{}}}]}}`
	ago := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339) }
	serving := func(name string) map[string]string { return map[string]string{"pod/" + name: running} }
	for object, c := range map[string]struct {
		objects string
		status  map[string]string
		code    int
		want    string
	}{
		"job/unseen": {fmt.Sprintf(job, "unseen"), nil, 1,
			"Job/unseen waits for its controller, which has not started it: is the controller manager running?"},
		"job/runs": {fmt.Sprintf(job, "runs"), map[string]string{"job/runs": `{"status":{"startTime":` +
			`"2026-01-01T00:00:00Z","active":2,"succeeded":1,"ready":2}}`}, 0,
			"Job/runs runs: 1 of 3 complete, 2 active."},
		"job/retries": {fmt.Sprintf(job, "retries"), map[string]string{"job/retries": `{"status":{"startTime":` +
			`"2026-01-01T00:00:00Z","active":1,"failed":2}}`}, 0,
			"Job/retries runs: 0 of 3 complete, 1 active, 2 failed (at most 6 may)."},
		"job/done": {fmt.Sprintf(job, "done"), map[string]string{"job/done": `{"status":{"startTime":` +
			`"2026-01-01T00:00:00Z","completionTime":"2026-01-01T00:01:00Z","succeeded":3,"conditions":[` +
			`{"type":"SuccessCriteriaMet","status":"True"},{"type":"Complete","status":"True"}]}}`}, 0,
			"Job/done is complete: 3 pods succeeded."},
		"cronjob/new": {fmt.Sprintf(cronJob, "new"), nil, 0,
			"CronJob/new has not started a Job yet: its schedule is 0 4 * * *."},
		"cronjob/old": {fmt.Sprintf(cronJob, "old"), map[string]string{"cronjob/old": fmt.Sprintf(
			`{"status":{"lastScheduleTime":%q}}`, ago(30*time.Second))}, 0,
			"CronJob/old started its last Job … ago; none has succeeded yet."},
		"deploy/none": {fmt.Sprintf(deployment, "none", 0), map[string]string{"deploy/none": `{"status":` +
			`{"observedGeneration":1}}`}, 0, "Deployment/none is scaled to zero."},
		"deploy/rolls": {fmt.Sprintf(deployment, "rolls", 3), map[string]string{"deploy/rolls": `{"status":` +
			`{"observedGeneration":1,"replicas":4,"readyReplicas":3,"availableReplicas":3,"updatedReplicas":1}}`}, 1,
			"Deployment/rolls is not ready: it rolls out: 1 of 3 pods are updated."},
		"deploy/ends": {fmt.Sprintf(deployment, "ends", 3), map[string]string{"deploy/ends": `{"status":` +
			`{"observedGeneration":1,"replicas":4,"readyReplicas":3,"availableReplicas":3,"updatedReplicas":3}}`}, 1,
			"Deployment/ends is not ready: it rolls out: 1 old pods have not ended."},
		"deploy/full": {fmt.Sprintf(deployment, "full", 3), map[string]string{"deploy/full": `{"status":` +
			`{"observedGeneration":1,"replicas":3,"readyReplicas":3,"availableReplicas":3,"updatedReplicas":3}}`}, 0,
			"Deployment/full is ready."},
		"svc/served": {fmt.Sprintf(server, "served") + fmt.Sprintf(service, "served", "selector: {app: served}, ",
			"http") + fmt.Sprintf(endpoints, "served", true), serving("served"), 0, "Service/served is ready."},
		"svc/unlisted": {fmt.Sprintf(server, "unlisted") + fmt.Sprintf(service, "unlisted", "selector: {app: "+
			"unlisted}, ", "http") + fmt.Sprintf(endpoints, "unlisted", false), serving("unlisted"), 1,
			"Service/unlisted has no ready endpoints, although 1 of its pods are ready: is the controller " +
				"endpointslice running?"},
		"svc/portless": {fmt.Sprintf(server, "portless") + fmt.Sprintf(service, "portless", "selector: {app: "+
			"portless}, ", "web"), serving("portless"), 1,
			`Service/portless sends the port 80 to the container port "web", which none of its pods has`},
		"svc/manual": {fmt.Sprintf(service, "manual", "", "80"), nil, 1,
			"Service/manual has no selector and no ready endpoints: nothing has written an EndpointSlice for it"},
		"svc/outside": {fmt.Sprintf(service, "outside", "", "80") + fmt.Sprintf(endpoints, "outside", true), nil, 0,
			"Service/outside is ready."},
		"svc/alias": {"{apiVersion: v1, kind: Service, metadata: {name: alias}, spec: {type: ExternalName, " +
			"externalName: example.com}}", nil, 0, "Service/alias is another name of example.com, which is not checked."},
		"svc/lb": {fmt.Sprintf(service, "lb", "type: LoadBalancer, ", "80") + fmt.Sprintf(endpoints, "lb", true), nil, 1,
			"Service/lb has no address: no load balancer has taken it"},
		"cm/words": {"{apiVersion: v1, kind: ConfigMap, metadata: {name: words}}", nil, 0,
			"ConfigMap/words exists; it reports no status."},
		"pdb/idle": {fmt.Sprintf(budget, "idle"), map[string]string{"pdb/idle": `{"status":{"observedGeneration":1,` +
			`"currentHealthy":0,"desiredHealthy":0,"disruptionsAllowed":0,"expectedPods":0}}`}, 0,
			"PodDisruptionBudget/idle protects no pods: its selector matches none."},
		"pdb/short": {fmt.Sprintf(budget, "short"), map[string]string{"pdb/short": `{"status":{"observedGeneration":1,` +
			`"currentHealthy":1,"desiredHealthy":2,"disruptionsAllowed":0,"expectedPods":2}}`}, 1,
			"PodDisruptionBudget/short has 1 healthy pods and must have 2"},
		"pod/given": {"{apiVersion: v1, kind: Pod, metadata: {name: given}, spec: {nodeName: quiet, containers: " +
			"[{name: c, image: i}]}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: quiet}}", nil, 1,
			"Pod/given waits for the agent of Node/quiet, which has not reported on it yet"},
		"node/agentless": {"{apiVersion: v1, kind: Node, metadata: {name: agentless}}", nil, 1,
			"Node/agentless has no condition Ready: no agent reports its state"},
	} {
		t.Run(object, func(t *testing.T) {
			t.Parallel()
			l.Succeed(t, c.objects, "create -f -")
			for object, patch := range c.status {
				l.Succeed(t, "", fmt.Sprintf("patch %s --subresource=status --type=merge -p '%s'", object, patch))
			}
			code, out := ask(t, l, object)
			require.Equal(t, c.code, code, out)
			require.Contains(t, out, c.want)
			if code == 0 {
				require.Equal(t, c.want+"\n", out)
			}
		})
	}
}

// TestWhy_NamesASilentNodeBeforeItsGraceEnds asks about Nodes that are Ready, with Leases of several ages.
func TestWhy_NamesASilentNodeBeforeItsGraceEnds(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t, testenv.APIServerOnly())
	const objects = "{apiVersion: v1, kind: Node, metadata: {name: %s}}\n---\n{apiVersion: v1, kind: Pod, metadata: " +
		"{name: on-%[1]s}, spec: {nodeName: %[1]s, containers: [{name: c, image: i}]}}\n---\n" +
		"{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: %[1]s, namespace: kube-node-lease}, " +
		"spec: {leaseDurationSeconds: 40, renewTime: %q}}\n"
	l.Run(t, "", "create ns kube-node-lease") // the API server may have been first
	for name, age := range map[string]time.Duration{"lively": 5 * time.Second, "silent": 32 * time.Second} {
		l.Succeed(t, fmt.Sprintf(objects, name, time.Now().Add(-age).UTC().Format(metav1.RFC3339Micro)), "create -f -")
		l.Succeed(t, "", "patch node/"+name+` --subresource=status --type=merge -p '{"status":{"conditions":[{"type":`+
			`"Ready","status":"True","reason":"KubeletReady"}]}}'`)
	}
	code, out := ask(t, l, "node/lively")
	require.Equal(t, "Node/lively is ready.\n", out)
	require.Zero(t, code)
	code, out = ask(t, l, "node/silent")
	require.Equal(t, 1, code)
	require.Contains(t, out, "Likely cause:\n  Node/silent is silent: its Lease was renewed … ago, and should be every "+
		"10s; it counts as Ready until its grace period ends\n")
	_, out = ask(t, l, "pod/on-silent")
	require.Contains(t, out, "Likely cause:\n  Pod/on-silent is on Node/silent, which is silent: its Lease was renewed "+
		"… ago, and should be every 10s\n")
	_, out = ask(t, l, "-A")
	require.Contains(t, out, "Node/silent is silent: its Lease was renewed … ago")
	require.NotContains(t, out, "Node/lively is silent")
}
