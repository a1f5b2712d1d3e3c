package builtin_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

// TestCells_OfEachState compares the tables with kube-apiserver's printers, for an object in each of its
// states. The age of an object without a creation time is unknown.
func TestCells_OfEachState(t *testing.T) {
	t.Parallel()
	const u = "<unknown>"
	hpa := func(metrics, now string) string {
		return "metadata: {name: h}\nspec: {scaleTargetRef: {kind: Deployment, name: d}, minReplicas: 1, " +
			"maxReplicas: 5, metrics: [" + metrics + "]}\nstatus: {currentReplicas: 2, currentMetrics: [" + now + "]}"
	}
	scaled := func(targets string) []any { return []any{"h", "Deployment/d", targets, "1", int64(5), int64(2), u} }
	const cpu = "{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}"
	const ofPods = "{type: Pods, pods: {metric: {name: m}, target: {type: AverageValue, averageValue: 5}}}"
	job := func(status string) string {
		return "metadata: {name: j}\nspec: {completions: 3, selector: {matchLabels: {a: b}}, template: {spec: " +
			"{containers: [{name: c, image: i}]}}}\nstatus: " + status
	}
	for name, c := range map[string]struct {
		kind, is string
		want     []any
	}{
		"job runs": {"Job", job("{succeeded: 1}"), []any{"j", "Running", "1/3", "", u, "c", "i", "a=b"}},
		"job suspended": {"Job", job("{conditions: [{type: Suspended, status: 'True'}]}"),
			[]any{"j", "Suspended", "0/3", "", u, "c", "i", "a=b"}},
		"job fails": {"Job", job("{conditions: [{type: FailureTarget, status: 'True'}]}"),
			[]any{"j", "FailureTarget", "0/3", "", u, "c", "i", "a=b"}},
		"job has failed": {"Job", job("{conditions: [{type: FailureTarget, status: 'True'}, {type: Failed, " +
			"status: 'True'}]}"), []any{"j", "Failed", "0/3", "", u, "c", "i", "a=b"}},
		"job succeeds": {"Job", job("{conditions: [{type: SuccessCriteriaMet, status: 'True'}]}"),
			[]any{"j", "SuccessCriteriaMet", "0/3", "", u, "c", "i", "a=b"}},
		"job complete": {"Job", job("{succeeded: 3, startTime: '2026-01-01T00:00:00Z', completionTime: " +
			"'2026-01-01T00:02:05Z', conditions: [{type: Complete, status: 'True'}]}"),
			[]any{"j", "Complete", "3/3", "2m5s", u, "c", "i", "a=b"}},
		"cron job": {"CronJob", "metadata: {name: c}\nspec: {schedule: '* * * * *', suspend: true, " +
			"timeZone: UTC}\nstatus: {active: [{name: a}]}", []any{"c", "* * * * *", "UTC", "True", int64(1), "<none>",
			u, "", "", "<none>"}},
		"no metrics yet": {"autoscaling/v2 HorizontalPodAutoscaler", hpa(cpu, ""), scaled("cpu: <unknown>/80%")},
		"utilization": {"autoscaling/v2 HorizontalPodAutoscaler", hpa(cpu, "{type: Resource, resource: "+
			"{name: cpu, current: {averageUtilization: 35}}}"), scaled("cpu: 35%/80%")},
		"many metrics": {"autoscaling/v2 HorizontalPodAutoscaler",
			hpa(cpu+", "+ofPods+", "+ofPods+", "+ofPods, ""), scaled("cpu: <unknown>/80%, <unknown>/5 + 2 more...")},
		"average of external": {"autoscaling/v2 HorizontalPodAutoscaler", hpa("{type: External, external: "+
			"{metric: {name: m}, target: {type: AverageValue, averageValue: 7}}}",
			"{type: External, external: {metric: {name: m}, current: {averageValue: 3}}}"), scaled("3/7 (avg)")},
		"budget of pods": {"PodDisruptionBudget", "metadata: {name: p}\nspec: {minAvailable: 50%}\nstatus: " +
			"{disruptionsAllowed: 2}", []any{"p", "50%", "N/A", int64(2), u}},
		"request pending": {"CertificateSigningRequest", "metadata: {name: c}\nspec: {username: ann, " +
			"expirationSeconds: 3600}", []any{"c", u, "<none>", "ann", "60m", "Pending"}},
		"request denied": {"CertificateSigningRequest", "metadata: {name: c}\nspec: {signerName: " +
			"a.b/c}\nstatus: {conditions: [{type: Denied, status: 'True'}]}",
			[]any{"c", u, "a.b/c", "", "<none>", "Denied"}},
		"node not ready": {"Node", "metadata: {name: n-1, labels: {kubernetes.io/role: x, " +
			"node-role.kubernetes.io/y: ''}}\nspec: {unschedulable: true}\nstatus: {conditions: [{type: Ready, " +
			"status: Unknown}], addresses: [{type: InternalIP, address: 10.0.0.1}]}",
			[]any{"n-1", "NotReady,SchedulingDisabled", "x,y", u, "", "10.0.0.1", "<none>", u, u, u}},
		"node unknown": {"Node", "metadata: {name: n-1}", []any{"n-1", "Unknown", "<none>", u, "", "<none>",
			"<none>", u, u, u}},
		"claim pending": {"PersistentVolumeClaim", "metadata: {name: p}\nspec: {storageClassName: fast, " +
			"resources: {requests: {storage: 1Gi}}}", []any{"p", "Pending", "", "", "", "fast", "<unset>", u,
			"Filesystem"}},
		"claim bound": {"PersistentVolumeClaim", "metadata: {name: p}\nspec: {volumeName: v}\nstatus: " +
			"{phase: Bound, accessModes: [ReadWriteOnce, ReadOnlyMany], capacity: {storage: 2Gi}}",
			[]any{"p", "Bound", "v", "2Gi", "RWO,ROX", "", "<unset>", u, "Filesystem"}},
		"volume": {"PersistentVolume", "metadata: {name: v}\nspec: {capacity: {storage: 2Gi}, " +
			"accessModes: [ReadWriteOncePod], claimRef: {namespace: a, name: b}, storageClassName: fast}\nstatus: " +
			"{phase: Bound, reason: r}", []any{"v", "2Gi", "RWOP", "Retain", "Bound", "a/b", "fast", "<unset>", "r", u,
			"Filesystem"}},
		"ingress": {"Ingress", "metadata: {name: i}\nspec: {tls: [{}], rules: [{host: a.b}]}\nstatus: " +
			"{loadBalancer: {ingress: [{ip: 10.0.0.2}, {hostname: a}]}}",
			[]any{"i", "<none>", "a.b", "10.0.0.2,a", "80, 443", u}},
		"load balancer waits": {"Service", "metadata: {name: s}\nspec: {type: LoadBalancer, clusterIPs: " +
			"[10.0.0.3], ports: [{port: 80, nodePort: 30000}]}", []any{"s", "LoadBalancer", "10.0.0.3", "<pending>",
			"80:30000/TCP", u, "<none>"}},
		"external name": {"Service", "metadata: {name: s}\nspec: {type: ExternalName, externalName: a.b}",
			[]any{"s", "ExternalName", "<none>", "a.b", "<none>", u, "<none>"}},
		"slice": {"EndpointSlice", "metadata: {name: s}\naddressType: IPv4\nendpoints: [{addresses: " +
			"[10.0.0.1, 10.0.0.2]}, {addresses: [10.0.0.3, 10.0.0.4]}]\nports: [{}]",
			[]any{"s", "IPv4", "<unset>", "10.0.0.1,10.0.0.2,10.0.0.3 + 1 more...", u}},
		"endpoints not ready": {"Endpoints", "metadata: {name: e}\nsubsets: [{notReadyAddresses: [{ip: " +
			"10.0.0.1}], ports: [{port: 80}]}]", []any{"e", "", u}},
		"no endpoints": {"Endpoints", "metadata: {name: e}", []any{"e", "<none>", u}},
		"old event": {"Event", "metadata: {name: e}\ninvolvedObject: {kind: Pod, name: p}\nreason: " +
			"R\ntype: Normal\nmessage: ' m '\nsource: {component: kubelet}\nreportingInstance: n-1",
			[]any{u, "Normal", "R", "pod/p", "", "kubelet, n-1", "m", u, int64(1), "e"}},
		"address": {"IPAddress", "metadata: {name: 10.0.0.1}\nspec: {parentRef: {resource: services, " +
			"namespace: a, name: b}}", []any{"10.0.0.1", "services/a/b"}},
		"revision": {"ControllerRevision", "metadata: {name: r, ownerReferences: [{apiVersion: " +
			"apps/v1, kind: StatefulSet, name: s, controller: true}]}\nrevision: 4",
			[]any{"r", "statefulset.apps/s", int64(4), u}},
		"account": {"ServiceAccount", "metadata: {name: a}\nsecrets: [{name: b}]", []any{"a", u}},
		"default class": {"StorageClass", "metadata: {name: c, annotations: " +
			"{storageclass.kubernetes.io/is-default-class: 'true'}}\nprovisioner: p",
			[]any{"c (default)", "p", "Delete", "Immediate", false, u}},
		"lease": {"Lease", "metadata: {name: l}", []any{"l", "", u}},
		"schema": {"FlowSchema", "metadata: {name: s}\nspec: {priorityLevelConfiguration: {name: l}}",
			[]any{"s", "l", int64(1000), "<none>", u, "?"}},
		"exempt": {"PriorityLevelConfiguration", "metadata: {name: exempt}\nspec: {type: Exempt}",
			[]any{"exempt", "Exempt", "<none>", "<none>", "<none>", "<none>", u}},
		"binding": {"ClusterRoleBinding", "metadata: {name: b}\nroleRef: {kind: ClusterRole, name: " +
			"r}\nsubjects: [{kind: User, name: u}, {kind: ServiceAccount, namespace: a, name: b}, {kind: User, " +
			"name: v}]", []any{"b", "ClusterRole/r", u, "u, v", "", "a/b"}},
	} {
		r := kindtest.Of(t, c.kind)
		require.Equal(t, c.want, r.CellsAt(time.Now(), kindtest.Decode(t, r, c.is)), name)
	}
	for kind, description := range map[string]string{"ClusterRoleBinding": "Users in the clusterRoleBinding",
		"RoleBinding": "Users in the roleBinding"} {
		require.Contains(t, kindtest.Of(t, kind).Columns, metav1.TableColumnDefinition{Name: "Users", Type: "string",
			Description: description, Priority: 1})
	}
}
