package builtin_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

// podDefaults are the defaults of a template's spec and of one container.
const podDefaults = `containers: [{name: a, image: b, imagePullPolicy: Always, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File, resources: {}}],
  restartPolicy: Always, dnsPolicy: ClusterFirst, schedulerName: default-scheduler, terminationGracePeriodSeconds: 30, securityContext: {}`

// TestDefault_OfMinimalObjects compares the defaults of minimal objects with kube-apiserver's. Kinds that are not
// listed have no defaults.
func TestDefault_OfMinimalObjects(t *testing.T) {
	t.Parallel()
	const template = "template: {spec: {containers: [{name: a, image: b}]}}"
	filled := "template: {metadata: {}, spec: {" + podDefaults + "}}"
	for kind, c := range map[string]struct{ is, want string }{
		"Deployment": {"spec: {" + template + "}", "spec: {replicas: 1, revisionHistoryLimit: 10, " +
			"progressDeadlineSeconds: 600, selector: null, strategy: {type: RollingUpdate, rollingUpdate: " +
			"{maxSurge: 25%, maxUnavailable: 25%}}, " + filled + "}"},
		"ReplicaSet": {"spec: {" + template + "}", "spec: {replicas: 1, selector: null, " + filled + "}"},
		"DaemonSet": {"spec: {" + template + "}", "metadata: {annotations: " +
			"{deprecated.daemonset.template.generation: '0'}}\nspec: {revisionHistoryLimit: 10, selector: null, " +
			"updateStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}, " + filled + "}"},
		"StatefulSet": {"spec: {" + template + "}", "spec: {replicas: 1, serviceName: '', revisionHistoryLimit: " +
			"10, selector: null, podManagementPolicy: OrderedReady, updateStrategy: {type: RollingUpdate, " +
			"rollingUpdate: {partition: 0, maxUnavailable: 1}}, " +
			"persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}, " + filled + "}"},
		"ReplicationController": {"spec: {" + template + "}", "spec: {replicas: 1, " + filled + "}"},
		"PodTemplate":           {template, filled},
		"Pod": {"spec: {containers: [{name: a, image: b}]}", "spec: {enableServiceLinks: true, " +
			podDefaults + "}"},
		"Job": {"spec: {" + template + "}", "spec: {completions: 1, parallelism: 1, " +
			"backoffLimit: 6, completionMode: NonIndexed, suspend: false, manualSelector: false, " +
			"podReplacementPolicy: TerminatingOrFailed, " + filled + "}"},
		"CronJob": {"spec: {schedule: x, jobTemplate: {spec: {podFailurePolicy: {rules: [{action: Ignore, " +
			"onPodConditions: [{type: A}]}]}, " + template + "}}}",
			"spec: {schedule: x, concurrencyPolicy: Allow, suspend: false, successfulJobsHistoryLimit: 3, " +
				"failedJobsHistoryLimit: 1, jobTemplate: {metadata: {}, spec: {podFailurePolicy: {rules: " +
				"[{action: Ignore, onPodConditions: [{type: A, status: 'True'}]}]}, " + filled + "}}}"},
		"autoscaling/v2 HorizontalPodAutoscaler": {"spec: {maxReplicas: 3, behavior: {}}",
			"spec: {maxReplicas: 3, minReplicas: 1, scaleTargetRef: {kind: '', name: ''}, metrics: [{type: " +
				"Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}], " +
				"behavior: {scaleUp: {stabilizationWindowSeconds: 0, selectPolicy: Max, policies: [{type: Pods, " +
				"value: 4, periodSeconds: 15}, {type: Percent, value: 100, periodSeconds: 15}]}, scaleDown: " +
				"{selectPolicy: Max, policies: [{type: Percent, value: 100, periodSeconds: 15}]}}}"},
		"IngressClass": {"spec: {parameters: {kind: a, name: b}}",
			"spec: {parameters: {kind: a, name: b, scope: Cluster}}"},
		"NetworkPolicy": {"spec: {egress: [{ports: [{port: 1}]}]}",
			"spec: {podSelector: {}, egress: [{ports: [{port: 1, protocol: TCP}]}], policyTypes: [Ingress, Egress]}"},
		"EndpointSlice": {"ports: [{port: 1}]",
			"addressType: ''\nendpoints: null\nports: [{port: 1, name: '', protocol: TCP}]"},
		"Endpoints": {"subsets: [{ports: [{port: 1}]}]",
			"subsets: [{ports: [{port: 1, protocol: TCP}]}]"},
		"StorageClass": {"provisioner: a",
			"provisioner: a\nreclaimPolicy: Delete\nvolumeBindingMode: Immediate"},
		"CSIDriver": {"spec: {}", "spec: {attachRequired: true, podInfoOnMount: false, " +
			"storageCapacity: false, fsGroupPolicy: ReadWriteOnceWithFSType, volumeLifecycleModes: [Persistent], " +
			"requiresRepublish: false, seLinuxMount: false}"},
		"PriorityClass": {"value: 1", "value: 1\npreemptionPolicy: PreemptLowerPriority"},
		"RoleBinding": {"subjects: [{kind: User, name: u}, {kind: ServiceAccount, name: s}]",
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: '', name: ''}\nsubjects: [{kind: User, name: u, " +
				"apiGroup: rbac.authorization.k8s.io}, {kind: ServiceAccount, name: s}]"},
		"FlowSchema": {"spec: {}",
			"spec: {matchingPrecedence: 1000, priorityLevelConfiguration: {name: ''}}"},
		"Secret": {"{}", "type: Opaque"},
		"PersistentVolume": {"spec: {}",
			"spec: {persistentVolumeReclaimPolicy: Retain, volumeMode: Filesystem}\nstatus: {phase: Pending}"},
		"PersistentVolumeClaim": {"spec: {}",
			"spec: {volumeMode: Filesystem, resources: {}}\nstatus: {phase: Pending}"},
		"PriorityLevelConfiguration": {"spec: {type: Limited, limited: {limitResponse: {type: Queue, queuing: {}}}}",
			"spec: {type: Limited, limited: {nominalConcurrencyShares: 30, lendablePercent: 0, limitResponse: " +
				"{type: Queue, queuing: {queues: 64, handSize: 8, queueLengthLimit: 50}}}}"},
		"MutatingWebhookConfiguration": {"webhooks: [{name: a, clientConfig: {service: {namespace: b, name: c}}, " +
			"rules: [{}]}]",
			"webhooks: [{name: a, clientConfig: {service: {namespace: b, name: c, port: 443}}, rules: [{scope: " +
				"'*'}], failurePolicy: Fail, matchPolicy: Equivalent, namespaceSelector: {}, objectSelector: {}, " +
				"timeoutSeconds: 10, reinvocationPolicy: Never, sideEffects: null, admissionReviewVersions: null}]"},
		"ValidatingAdmissionPolicy": {"spec: {matchConstraints: {resourceRules: [{}]}}",
			"spec: {failurePolicy: Fail, matchConstraints: {resourceRules: [{scope: '*'}], matchPolicy: " +
				"Equivalent, namespaceSelector: {}, objectSelector: {}}}"},
		"ConfigMap":           {"{}", "{}"},
		"Ingress":             {"spec: {}", "spec: {}"},
		"PodDisruptionBudget": {"spec: {}", "spec: {}"},
		"Lease":               {"spec: {}", "spec: {}"},
		"RuntimeClass":        {"handler: a", "handler: a"},
	} {
		r := kindtest.Of(t, kind)
		want := r.New()
		require.NoError(t, yaml.UnmarshalStrict([]byte(strings.ReplaceAll(c.want, "\n  ", " ")), want), kind)
		expected, err := json.Marshal(want)
		require.NoError(t, err)
		have, err := json.Marshal(kindtest.Decode(t, r, c.is))
		require.NoError(t, err)
		require.JSONEq(t, string(expected), string(have), kind)
	}
}
