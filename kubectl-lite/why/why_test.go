package why_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/testenv"
)

// TestWhy_PutsTheLikelyCauseFirst creates objects with the status that controllers and nodes write, and compares the
// answers. No controllers run, so that the objects do not change.
func TestWhy_PutsTheLikelyCauseFirst(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t, testenv.APIServerOnly())
	pod := func(name, spec string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: %[1]s}}, spec: "+
			"{containers: [{name: c, image: i}]%s}}\n---\n", name, spec)
	}
	const deployment = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: %s}, spec: {selector: " +
		"{matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: " +
		"i}]}}%s}}\n---\n"
	waiting := func(reason, message string) string {
		return fmt.Sprintf(
			`{"status":{"phase":"Pending","containerStatuses":[{"name":"c","image":"i","imageID":"","ready":false,"restartCount":0,"state":{"waiting":{"reason":%q,"message":%q}}}]}}`, reason, message)
	}
	const running = `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":%q},{"type":"ContainersReady","status":%[1]q}],` +
		`"containerStatuses":[{"name":"c","image":"i","imageID":"","ready":%s,"restartCount":0,"state":{"running":{}}}]}}`
	const service = "{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {selector: {app: %[1]s}, ports: " +
		"[{port: 80}]}}\n"
	const ingress = "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: %s}, spec: {rules: " +
		"[{host: shop.example, http: {paths: [" +
		"{path: /buy, pathType: Prefix, backend: {service: {name: %s, port: {number: %d}}}}]}}]%s}}\n"
	for name, c := range map[string]struct {
		objects string
		status  map[string]string // patches, by object
		ask     string
		cause   string
	}{
		"image": {
			pod("image", ""), map[string]string{"pod/image": waiting("ImagePullBackOff", "Back-off pulling image")},
			"pod/image",
			"Pod/image container c cannot get its image: Back-off pulling image",
		},
		"crash": {
			pod("crash", ""),
			map[string]string{"pod/crash": `{"status":{"phase":"Running","containerStatuses":[{"name":"c","image":"i","imageID":"","ready":false,"restartCount":4,` +
				`"state":{"waiting":{"reason":"CrashLoopBackOff"}},"lastState":{"terminated":{"exitCode":7,"reason":"Error"}}}]}}`}, "pod/crash",
			"Pod/crash container c keeps ending with exit code 7 (Error), 4 restarts",
		},
		"probe": {
			pod("probe", ""), map[string]string{"pod/probe": fmt.Sprintf(running, "False", "false")}, "pod/probe",
			"Pod/probe container c runs but is not ready: its readiness or startup probe has not passed",
		},
		"readiness gate": {
			pod("gate", ", readinessGates: [{conditionType: example.com/ok}]"),
			map[string]string{"pod/gate": strings.Replace(fmt.Sprintf(running, "True", "true"),
				`"Ready","status":"True"`, `"Ready","status":"False"`, 1)}, "pod/gate",
			"Pod/gate waits for its readiness gate example.com/ok",
		},
		"init container": {
			pod("init", ", initContainers: [{name: first, image: i}]"),
			map[string]string{"pod/init": `{"status":{"phase":"Pending","initContainerStatuses":[{"name":"first","image":"i","imageID":"","ready":false,"restartCount":0,"state":{"running":{}}}]}}`}, "pod/init",
			"Pod/init init container first still runs; the containers after it wait for its end",
		},
		"missing ConfigMap": {
			pod("config", ", volumes: [{name: v, configMap: {name: absent}}]"),
			map[string]string{"pod/config": waiting("ContainerCreating", "")}, "pod/config",
			"Pod/config needs ConfigMap/absent, which does not exist",
		},
		"missing claim": {
			pod("noclaim", ", volumes: [{name: v, persistentVolumeClaim: {claimName: absent}}]"), nil, "pod/noclaim",
			"Pod/noclaim needs PersistentVolumeClaim/absent, which does not exist",
		},
		"pending claim": {
			pod("claimed", ", volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]") +
				"{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data}, spec: {accessModes: " +
				"[ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 1Gi}}}}\n", nil,
			"pod/claimed",
			"Pod/claimed needs PersistentVolumeClaim/data, which is Pending: StorageClass/fast does not exist",
		},
		"no node takes it": {
			pod("nowhere", ""),
			map[string]string{"pod/nowhere": `{"status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/0 nodes are available."}]}}`}, "pod/nowhere",
			"Pod/nowhere cannot be scheduled: 0/0 nodes are available",
		},
		"no scheduler": {pod("unseen", ""), nil, "pod/unseen",
			"Pod/unseen waits for the scheduler default-scheduler, which has not looked at it: is it running?"},
		"node is dead": {
			pod("lost", ", nodeName: dead") + "{apiVersion: v1, kind: Node, metadata: {name: dead}}\n",
			map[string]string{
				"pod/lost": strings.Replace(fmt.Sprintf(running, "True", "true"), `"Ready","status":"True"`,
					`"Ready","status":"False"`, 1),
				"node/dead": `{"status":{"conditions":[{"type":"Ready","status":"Unknown","message":"Kubelet stopped posting node status."}]}}`,
			}, "pod/lost",
			"Pod/lost is on Node/dead, which is not ready: Kubelet stopped posting node status",
		},
		"evicted": {
			pod("evicted", ""),
			map[string]string{"pod/evicted": `{"status":{"phase":"Failed","reason":"Evicted","message":"The node was low on resource: memory."}}`}, "pod/evicted",
			"Pod/evicted has failed: Evicted: The node was low on resource: memory.",
		},
		"refused by a quota": {
			fmt.Sprintf(deployment, "refused", ""),
			map[string]string{"deploy/refused": `{"status":{"observedGeneration":1,"conditions":[` +
				`{"type":"ReplicaFailure","status":"True","reason":"FailedCreate","message":"pods \"x\" is forbidden: exceeded quota: small"},` +
				`{"type":"Available","status":"False","reason":"MinimumReplicasUnavailable","message":"Deployment does not have minimum availability."}]}}`}, "deploy/refused",
			`Deployment/refused cannot make its pods: pods "x" is forbidden: exceeded quota: small`,
		},
		"no controller": {fmt.Sprintf(deployment, "unseen", ""), nil, "deploy/unseen",
			"Deployment/unseen waits for its controller, which has not seen its latest change: is the controller " +
				"manager running?"},
		"paused": {fmt.Sprintf(deployment, "paused", ", paused: true"),
			map[string]string{"deploy/paused": `{"status":{"observedGeneration":1}}`}, "deploy/paused",
			"Deployment/paused is paused: 'rollout resume' lets it go on"},
		"selects nothing": {
			"{apiVersion: v1, kind: Service, metadata: {name: lonely}, spec: {selector: {app: nothing}, ports: " +
				"[{port: 80}]}}\n", nil, "svc/lonely",
			"Service/lonely selects no pods: none here has the labels app=nothing",
		},
		"service behind whom nobody is ready": {
			pod("behind", "") + "{apiVersion: v1, kind: Service, metadata: {name: front}, spec: {selector: {app: " +
				"behind}, ports: [{port: 80}]}}\n",
			map[string]string{"pod/behind": waiting("ErrImagePull", "no such image")}, "svc/front",
			"Pod/behind container c cannot get its image: no such image",
		},
		"service without endpoints": {
			pod("served", ", hostNetwork: true") + fmt.Sprintf(service, "served"),
			map[string]string{"pod/served": strings.Replace(fmt.Sprintf(running, "True", "true"),
				`"phase":"Running"`, `"phase":"Running","podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}]`, 1)},
			"svc/served",
			"Service/served has no endpoints: Pod/served has the address 127.0.0.1, which other nodes cannot reach",
		},
		"restarted": {
			pod("restarted", ""),
			map[string]string{"pod/restarted": strings.Replace(fmt.Sprintf(running, "True", "true"),
				`"restartCount":0`, fmt.Sprintf(
					`"restartCount":3,"lastState":{"terminated":{"exitCode":137,"reason":"OOMKilled","finishedAt":%q}}`,
					time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)), 1)}, "pod/restarted",
			"Pod/restarted container c runs again, 3 restarts: it ended … ago with exit code 137 (OOMKilled)",
		},
		"ingress without a service": {
			fmt.Sprintf(ingress, "nowhere", "absent", 80, ""), nil, "ing/nowhere",
			"Ingress/nowhere sends shop.example/buy to Service/absent, which does not exist",
		},
		"ingress to another port": {
			fmt.Sprintf(ingress, "aside", "aside", 81, "") + "---\n" + fmt.Sprintf(service, "aside"), nil, "ing/aside",
			"Ingress/aside sends shop.example/buy to the port 81 of Service/aside, which it does not have",
		},
		"ingress before a service without pods": {
			fmt.Sprintf(ingress, "vain", "vain", 80, "") + "---\n" + fmt.Sprintf(service, "vain"), nil, "ing/vain",
			"Service/vain selects no pods: none here has the labels app=vain",
		},
		"ingress without its certificate": {
			fmt.Sprintf(ingress, "plain", "external", 80, ", tls: [{secretName: cert}]") +
				"---\n{apiVersion: v1, kind: Service, metadata: {name: external}, spec: {type: ExternalName, " +
				"externalName: example.com}}\n", nil, "ing/plain",
			"Ingress/plain needs Secret/cert, which does not exist",
		},
		"ingress of no class": {
			fmt.Sprintf(ingress, "classless", "faraway", 80, ", ingressClassName: none") +
				"---\n{apiVersion: v1, kind: Service, metadata: {name: faraway}, spec: {type: ExternalName, " +
				"externalName: example.com}}\n", nil, "ing/classless",
			"Ingress/classless is of IngressClass/none, which does not exist",
		},
		"job that failed": {
			"{apiVersion: batch/v1, kind: Job, metadata: {name: failed}, spec: {template: {spec: {restartPolicy: " +
				"Never, containers: [{name: c, image: i}]}}}}\n",
			map[string]string{"job/failed": `{"status":{"startTime":"2026-01-01T00:00:00Z","conditions":[{"type":"FailureTarget","status":"True","reason":"DeadlineExceeded"},` +
				`{"type":"Failed","status":"True","reason":"DeadlineExceeded","message":"Job was active longer than specified deadline"}]}}`}, "job/failed",
			"Job/failed has failed: Job was active longer than specified deadline",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l.Succeed(t, c.objects, "create -f -")
			for object, patch := range c.status {
				l.Succeed(t, "", fmt.Sprintf("patch %s --subresource=status --type=merge -p '%s'", object, patch))
			}
			got := l.Run(t, "", "why "+c.ask)
			require.Equal(t, 1, got.Code, "the answer is no: %s", got.ErrOut)
			require.Empty(t, got.ErrOut)
			out := got.Out
			_, causes, _ := strings.Cut(out, "Likely cause:\n  ")
			first, _, _ := strings.Cut(causes, "\n")
			require.Equal(t, c.cause, regexp.MustCompile(`ended \S+ ago`).ReplaceAllString(first, "ended … ago"), out)
		})
	}
	l.Succeed(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: stuck, finalizers: [example.com/hold]}}",
		"create -f -")
	l.Succeed(t, "", "delete cm stuck --wait=false")
	require.Contains(t, l.Run(t, "", "why cm/stuck").Out,
		"Likely cause:\n  ConfigMap/stuck is being deleted and waits for the finalizers example.com/hold\n")
}

// TestWhy_InspectsNamespaces has two healthy namespaces and two with faults.
func TestWhy_InspectsNamespaces(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t)
	for _, ns := range []string{"well", "broken", "idle"} {
		l.Succeed(t, "", "create ns "+ns)
	}
	l.Succeed(t, clitest.WebManifest, "apply -n well -f -")
	l.Succeed(t, "", "rollout status deploy/web -n well --timeout=30s")
	l.Succeed(t, "", "create job once --image=i -n well -- true")
	l.Succeed(t, "", "expose deploy web --port=80 -n well")
	l.Succeed(t, "", "create ingress front --rule=a.example/*=web:80 -n well")
	for _, line := range []string{"why -n well", "why ns/well", "why -n idle"} {
		require.Eventually(t, func() bool {
			return l.Run(t, "", line).Code == 0
		}, 30*time.Second, 100*time.Millisecond, line)
	}
	require.Equal(t, "Nothing is wrong in namespace well.\n", l.Succeed(t, "", "why -n well"))
	require.Equal(t, "{\n    \"ok\": true,\n    \"namespace\": \"idle\",\n    \"findings\": []\n}\n",
		l.Succeed(t, "", "why -n idle -o json"))

	l.Succeed(t, "", "create ingress front --rule=a.example/*=web:80 -n broken")
	l.Succeed(t, "", "create deployment big --image=i --replicas=3 -n broken")
	l.Succeed(t, "", "set resources deploy/big --requests=cpu=9000 -n broken")
	wants := []string{"  Ingress/front%s sends a.example/ to Service/web, which does not exist\n", "  Pod/big-"}
	require.Eventually(t, func() bool {
		return strings.Contains(l.Run(t, "", "why -n broken").Out, "cannot be scheduled")
	}, 30*time.Second, 100*time.Millisecond)
	for line, in := range map[string]string{"why -n broken": "", "why namespace broken": "", "why -A": " in broken"} {
		got := l.Run(t, "", line)
		require.Equal(t, 1, got.Code, line)
		require.Empty(t, got.ErrOut)
		require.Contains(t, got.Out, " things are wrong in ")
		require.Contains(t, got.Out, fmt.Sprintf(wants[0], in))
		require.Contains(t, got.Out, wants[1])
		require.NotContains(t, got.Out, " in well")
		require.Equal(t, 1, strings.Count(got.Out, "Service/web"), "one cause is told once: %s", got.Out)
	}
	got := l.Run(t, "", "why -A -o json")
	require.Equal(t, 1, got.Code)
	var answer struct {
		OK       bool
		Findings []struct{ Cause, Object, Namespace, Message string }
	}
	require.NoError(t, json.Unmarshal([]byte(got.Out), &answer), got.Out)
	require.False(t, answer.OK)
	require.Equal(t, "missing", answer.Findings[0].Cause)
	require.Equal(t, "Ingress/front", answer.Findings[0].Object)
	require.Equal(t, "broken", answer.Findings[0].Namespace)

	require.Contains(t, l.Run(t, "", "why -n nope").ErrOut, `namespaces "nope" not found`)
	require.Contains(t, l.Run(t, "", "why").ErrOut, "an object is required")
	require.Contains(t, l.Run(t, "", "why deploy/web -A").ErrOut, "exclude each other")
	require.Contains(t, l.Run(t, "", "why deploy/web -o yaml").ErrOut, "--output must be 'json'")
}
