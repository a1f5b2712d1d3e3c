package api_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const soundJob = `
metadata: {name: j, namespace: default}
spec:
  manualSelector: true
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      restartPolicy: Never
      containers: [{name: main, image: busybox}]
`

func TestJob_ValidateRefuses(t *testing.T) {
	t.Parallel()
	tryCreate(t, "Job", soundJob, []refused{
		{"somebody's selector", []string{"manualSelector: true", "manualSelector: false"},
			[]string{"Required spec.template.metadata.labels[controller-uid]", "Required spec.template.metadata.labels[job-name]", "Required spec.template.metadata.labels[batch.kubernetes.io/controller-uid]", "Required spec.template.metadata.labels[batch.kubernetes.io/job-name]", "Invalid spec.selector"}},
		{"many indexes", []string{"  selector", "  completionMode: Indexed\n  completions: 100001\n  parallelism: 10001\n  backoffLimitPerIndex: 1\n  selector"},
			[]string{"Required spec.maxFailedIndexes", "Invalid spec.parallelism"}},
		{"restart always", []string{"restartPolicy: Never", "restartPolicy: Always"}, []string{"Required spec.template.spec.restartPolicy"}},
		{"selector", []string{"matchLabels: {a: b}", "matchLabels: {a: c}"}, []string{"Invalid spec.template.metadata.labels"}},
		{"parallelism", []string{"  selector", "  parallelism: -1\n  selector"}, []string{"Invalid spec.parallelism"}},
		{"backoff", []string{"  selector", "  backoffLimit: -1\n  selector"}, []string{"Invalid spec.backoffLimit"}},
		{"indexed without completions", []string{"  selector", "  parallelism: 2\n  completionMode: Indexed\n  selector"}, []string{"Required spec.completions"}},
		{"per index", []string{"  selector", "  backoffLimitPerIndex: 1\n  selector"}, []string{"Invalid spec.backoffLimitPerIndex"}},
		{"failure policy", []string{"  selector", "  podFailurePolicy: {rules: [{action: Panic, onExitCodes: {operator: In, values: [0]}}]}\n  selector"},
			[]string{"NotSupported spec.podFailurePolicy.rules[0].action", "Invalid spec.podFailurePolicy.rules[0].onExitCodes.values[0]"}},
	})
	tryUpdate(t, "Job", soundJob, []refused{
		{"image", []string{"image: busybox", "image: other"}, []string{"Invalid spec.template"}},
		{"completions", []string{"  selector", "  completions: 4\n  selector"}, []string{"Invalid spec.completions"}},
		{"parallelism", []string{"  selector", "  completions: 1\n  parallelism: 4\n  selector"}, nil},
	})
}

func TestJob_CreateMakesItsSelector(t *testing.T) {
	t.Parallel()
	r := kindOf(t, "Job")
	j := decode(t, r, "metadata: {name: j}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: b}]}}}").(*batchv1.Job)
	j.UID = types.UID("u1")
	r.PrepareCreate(j)
	require.Empty(t, r.Validate(j))
	require.Equal(t, map[string]string{"batch.kubernetes.io/controller-uid": "u1"}, j.Spec.Selector.MatchLabels)
	require.Equal(t, "j", j.Spec.Template.Labels["job-name"])
	require.Equal(t, ptr.To[int32](6), j.Spec.BackoffLimit)
	require.Equal(t, []any{"j", "Running", "0/1", ""}, r.Cells(j)[:4])
}

func TestCronJob_ValidateRefuses(t *testing.T) {
	t.Parallel()
	const cron = `
metadata: {name: c}
spec:
  schedule: "*/5 * * * *"
  timeZone: Europe/Berlin
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: b}]}}}}
`
	tryCreate(t, "CronJob", cron, []refused{
		{"schedule", []string{"*/5 * * * *", "often"}, []string{"Invalid spec.schedule"}},
		{"no schedule", []string{"*/5 * * * *", ""}, []string{"Required spec.schedule"}},
		{"zone in schedule", []string{"*/5 * * * *", "TZ=UTC */5 * * * *"}, []string{"Invalid spec.schedule"}},
		{"long name", []string{"name: c}", "name: a123456789-a123456789-a123456789-a123456789-a12345678}"}, []string{"Invalid metadata.name"}},
		{"selector", []string{"spec: {template: {spec: {restart", "spec: {selector: {matchLabels: {a: b}}, template: {spec: {restart"}, []string{"Invalid spec.jobTemplate.spec.selector"}},
		{"manual selector", []string{"spec: {template: {spec: {restart", "spec: {manualSelector: true, template: {spec: {restart"}, []string{"NotSupported spec.jobTemplate.spec.manualSelector"}},
		{"zone of a path", []string{"Europe/Berlin", "Europe/../Berlin"}, []string{"Invalid spec.timeZone"}},
		{"no zone", []string{"Europe/Berlin", "''"}, []string{"Invalid spec.timeZone"}},
		{"the zone here", []string{"Europe/Berlin", "Local"}, []string{"Invalid spec.timeZone"}},
		{"limits", []string{"  schedule", "  startingDeadlineSeconds: -1\n  successfulJobsHistoryLimit: -1\n  failedJobsHistoryLimit: -1\n  schedule"},
			[]string{"Invalid spec.startingDeadlineSeconds", "Invalid spec.successfulJobsHistoryLimit", "Invalid spec.failedJobsHistoryLimit"}},
		{"zone alone", []string{"*/5 * * * *", "TZ=UTC"}, []string{"Invalid spec.schedule", "Invalid spec.schedule"}},
		{"zone", []string{"Europe/Berlin", "Europe/Atlantis"}, []string{"Invalid spec.timeZone"}},
		{"concurrency", []string{"  jobTemplate", "  concurrencyPolicy: Maybe\n  jobTemplate"}, []string{"NotSupported spec.concurrencyPolicy"}},
		{"job", []string{"Never", "Always"}, []string{"Required spec.jobTemplate.spec.template.spec.restartPolicy"}},
	})
}

func TestStatefulAndDaemonSet_ValidateRefuses(t *testing.T) {
	t.Parallel()
	tryCreate(t, "StatefulSet", soundDeployment, []refused{
		{"strategy", []string{"replicas: 3", "updateStrategy: {type: Slow}"}, []string{"Invalid spec.updateStrategy"}},
		{"partition", []string{"replicas: 3", "updateStrategy: {rollingUpdate: {partition: -1}}"}, []string{"Invalid spec.updateStrategy.rollingUpdate.partition"}},
		{"management", []string{"replicas: 3", "podManagementPolicy: Odd"}, []string{"Invalid spec.podManagementPolicy"}},
		{"claim", []string{"replicas: 3", "volumeClaimTemplates: [{metadata: {name: d}, spec: {accessModes: [ReadWriteOnce]}}]"}, []string{"Required spec.volumeClaimTemplates[0].spec.resources[storage]"}},
	})
	tryUpdate(t, "StatefulSet", soundDeployment, []refused{
		{"replicas", []string{"replicas: 3", "replicas: 4"}, nil},
		{"service", []string{"replicas: 3", "replicas: 3\n  serviceName: other"}, []string{"Forbidden spec"}},
	})
	daemons := strings.Replace(soundDeployment, "  replicas: 3\n", "  minReadySeconds: 0\n", 1)
	tryCreate(t, "DaemonSet", daemons, []refused{
		{"both bounds", []string{"minReadySeconds: 0", "updateStrategy: {rollingUpdate: {maxSurge: 1}}"}, []string{"Invalid spec.updateStrategy.rollingUpdate.maxSurge"}},
		{"no bound", []string{"minReadySeconds: 0", "updateStrategy: {rollingUpdate: {maxUnavailable: 0}}"}, []string{"Required spec.updateStrategy.rollingUpdate.maxUnavailable"}},
		{"strategy", []string{"minReadySeconds: 0", "updateStrategy: {type: Slow}"}, []string{"NotSupported spec.updateStrategy"}},
	})
}

func TestWiderKinds_ValidateRefuses(t *testing.T) {
	t.Parallel()
	tryCreate(t, "Role", "rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]", []refused{
		{"no verbs", []string{", verbs: [get]", ""}, []string{"Required rules[0].verbs"}},
		{"no group", []string{"apiGroups: [''], ", ""}, []string{"Required rules[0].apiGroups"}},
		{"urls", []string{"{apiGroups: [''], resources: [pods],", "{nonResourceURLs: [/a],"}, []string{"Invalid rules[0].nonResourceURLs"}},
	})
	const binding = "roleRef: {kind: ClusterRole, name: view}\nsubjects: [{kind: User, name: u}]"
	tryCreate(t, "ClusterRoleBinding", binding, []refused{
		{"kind", []string{"kind: ClusterRole", "kind: Role"}, []string{"NotSupported roleRef.kind"}},
		{"account without namespace", []string{"kind: User", "kind: ServiceAccount"}, []string{"Required subjects[0].namespace"}},
		{"subject", []string{"kind: User", "kind: Machine"}, []string{"NotSupported subjects[0].kind"}},
	})
	tryUpdate(t, "ClusterRoleBinding", binding, []refused{{"role", []string{"name: view", "name: admin"}, []string{"Invalid roleRef"}}})
	tryCreate(t, "PodDisruptionBudget", "spec: {minAvailable: 50%, selector: {}}", []refused{
		{"both", []string{"minAvailable: 50%", "minAvailable: 1, maxUnavailable: 1"}, []string{"Invalid spec"}},
		{"over", []string{"50%", "150%"}, []string{"Invalid spec.minAvailable"}},
		{"negative", []string{"50%", "-1"}, []string{"Invalid spec.minAvailable"}},
	})
	tryCreate(t, "HorizontalPodAutoscaler", "spec: {scaleTargetRef: {kind: Deployment, name: d}, minReplicas: 2, maxReplicas: 5}", []refused{
		{"bounds", []string{"maxReplicas: 5", "maxReplicas: 1"}, []string{"Invalid spec.maxReplicas"}},
		{"zero", []string{"minReplicas: 2", "minReplicas: 0"}, []string{"Forbidden spec.metrics"}},
		{"target", []string{", name: d", ""}, []string{"Required spec.scaleTargetRef.name"}},
		{"metric", []string{"spec: {", "spec: {metrics: [{type: Resource}], "}, []string{"Required spec.metrics[0].resource"}},
	})
	tryCreate(t, "Ingress", "spec: {rules: [{host: a.b, http: {paths: [{path: /x, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}]}}]}", []refused{
		{"host", []string{"host: a.b", "host: 1.2.3.4"}, []string{"Invalid spec.rules[0].host"}},
		{"path", []string{"path: /x", "path: x"}, []string{"Invalid spec.rules[0].http.paths[0].path"}},
		{"no path type", []string{"pathType: Prefix, ", ""}, []string{"Required spec.rules[0].http.paths[0].pathType"}},
		{"no port", []string{"number: 80", "number: 0"}, []string{"Required spec.rules[0].http.paths[0].backend"}},
	})
	tryCreate(t, "NetworkPolicy", "spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}], ports: [{port: 80}]}]}", []refused{
		{"except", []string{"10.1.0.0/16", "11.0.0.0/16"}, []string{"Invalid spec.ingress[0].from[0].ipBlock.except[0]"}},
		{"empty peer", []string{"{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}", "{}"}, []string{"Required spec.ingress[0].from[0]"}},
		{"end port", []string{"port: 80", "port: 80, endPort: 79"}, []string{"Invalid spec.ingress[0].ports[0].endPort"}},
	})
	tryCreate(t, "EndpointSlice", "addressType: IPv4\nendpoints: [{addresses: [10.0.0.1]}]\nports: [{port: 80}]", []refused{
		{"type", []string{"IPv4", "IPv5"}, []string{"NotSupported addressType"}},
		{"family", []string{"10.0.0.1", "'fd00::1'"}, []string{"Invalid endpoints[0].addresses[0]"}},
		{"no address", []string{"[10.0.0.1]", "[]"}, []string{"Required endpoints[0].addresses"}},
	})
	tryCreate(t, "PersistentVolumeClaim", "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}", []refused{
		{"mode", []string{"[ReadWriteOnce]", "[Some]"}, []string{"NotSupported spec.accessModes"}},
		{"no mode", []string{"[ReadWriteOnce]", "[]"}, []string{"Required spec.accessModes"}},
		{"size", []string{"1Gi", "'0'"}, []string{"Invalid spec.resources[storage]"}},
	})
	tryCreate(t, "PriorityClass", "metadata: {name: p}\nvalue: 100", []refused{
		{"value", []string{"100", "2000000000"}, []string{"Forbidden value"}},
		{"reserved", []string{"name: p", "name: system-p"}, []string{"Forbidden metadata.name"}},
	})
	tryUpdate(t, "PriorityClass", "value: 100", []refused{{"value", []string{"100", "101"}, []string{"Forbidden value"}}})
	tryCreate(t, "LimitRange", "spec: {limits: [{type: Container, max: {cpu: 2}, min: {cpu: 1}}]}", []refused{
		{"min above max", []string{"min: {cpu: 1}", "min: {cpu: 3}, defaultRequest: {cpu: 2}"}, []string{"Invalid spec.limits[0].min[cpu]", "Invalid spec.limits[0].defaultRequest[cpu]", "Invalid spec.limits[0].default[cpu]"}},
		{"type", []string{"type: Container, ", ""}, []string{"Invalid spec.limits[0].type", "Invalid spec.limits[0].type"}},
	})
	tryCreate(t, "ResourceQuota", "spec: {hard: {pods: 3}, scopes: [BestEffort]}", []refused{
		{"negative", []string{"pods: 3", "pods: -3"}, []string{"Invalid spec.hard[pods]"}},
		{"scope", []string{"BestEffort", "Odd"}, []string{"Invalid spec.scopes"}},
		{"scope of pods on claims", []string{"pods: 3", "persistentvolumeclaims: 3"}, []string{"Invalid spec.scopes"}},
	})
	tryCreate(t, "StorageClass", "provisioner: a.io/b", []refused{
		{"provisioner", []string{"a.io/b", "''"}, []string{"Required provisioner"}},
		{"binding", []string{"provisioner", "volumeBindingMode: Late\nprovisioner"}, []string{"NotSupported volumeBindingMode"}},
	})
	tryCreate(t, "ValidatingWebhookConfiguration", "webhooks: [{name: a.b.c, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: 'https://a/b'}}]", []refused{
		{"name", []string{"a.b.c", "a"}, []string{"Invalid webhooks[0].name"}},
		{"scheme", []string{"https:", "http:"}, []string{"Invalid webhooks[0].clientConfig.url"}},
		{"side effects", []string{"sideEffects: None", "sideEffects: Some"}, []string{"NotSupported webhooks[0].sideEffects"}},
		{"no client", []string{"{url: 'https://a/b'}", "{}"}, []string{"Required webhooks[0].clientConfig"}},
	})
}

func TestReplicationController_TakesSelectorAndLabelsFromItsTemplate(t *testing.T) {
	t.Parallel()
	rc := decode(t, kindOf(t, "ReplicationController"), "spec: {template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: b}]}}}").(*corev1.ReplicationController)
	require.Equal(t, map[string]string{"a": "b"}, rc.Spec.Selector)
	require.Equal(t, map[string]string{"a": "b"}, rc.Labels)
}
