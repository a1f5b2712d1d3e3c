package apps_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

const soundStatefulSet = `
metadata: {name: db, namespace: default}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers:
      - {name: main, image: postgres, volumeMounts: [{name: data, mountPath: /data}]}
  volumeClaimTemplates:
  - {metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
`

func TestStatefulSet_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "StatefulSet", soundStatefulSet, []kindtest.Case{
		{"negative history is a warning", []string{"  serviceName", "  revisionHistoryLimit: -1\n  serviceName"}, nil},
		{"host names are its controller's",
			[]string{"    spec:\n", "    spec:\n      hostname: A_b\n      subdomain: A_b\n"}, nil},
		{"no service", []string{"  serviceName: db\n", ""}, nil},
		{"service name", []string{"serviceName: db", "serviceName: a.b"}, []string{"Invalid spec.serviceName"}},
		{"no selector", []string{"  selector: {matchLabels: {app: db}}\n", ""},
			[]string{"Required spec.selector", "Invalid spec.template.metadata.labels"}},
		{"bad selector", []string{"selector: {matchLabels: {app: db}}",
			"selector: {matchExpressions: [{key: a, operator: Is}]}"},
			[]string{"Invalid spec.selector.matchExpressions[0].operator", "Invalid spec.selector"}},
		{"strategy", []string{"  serviceName", "  updateStrategy: {type: Slow}\n  serviceName"},
			[]string{"Invalid spec.updateStrategy"}},
		{"on delete with bounds", []string{"  serviceName", "  updateStrategy: {type: OnDelete, rollingUpdate: " +
			"{partition: 1}}\n  serviceName"}, []string{"Invalid spec.updateStrategy.rollingUpdate"}},
		{"bounds", []string{"  serviceName",
			"  updateStrategy: {rollingUpdate: {partition: -1, maxUnavailable: 0}}\n  serviceName"},
			[]string{"Invalid spec.updateStrategy.rollingUpdate.partition",
				"Invalid spec.updateStrategy.rollingUpdate.maxUnavailable"}},
		{"ordinals", []string{"  serviceName", "  ordinals: {start: -1}\n  serviceName"},
			[]string{"Invalid spec.ordinals.start"}},
		{"retention", []string{"  serviceName", "  persistentVolumeClaimRetentionPolicy: {whenScaled: Keep}\n  " +
			"serviceName"}, []string{"NotSupported spec.persistentVolumeClaimRetentionPolicy.whenScaled"}},
		{"claim", []string{"[ReadWriteOnce]", "[Often]"},
			[]string{"NotSupported spec.volumeClaimTemplates[0].spec.accessModes"}},
		{"mount of nothing", []string{"name: data, mountPath", "name: other, mountPath"},
			[]string{"NotFound spec.template.spec.containers[0].volumeMounts[0].name"}},
	})
	kindtest.Update(t, "StatefulSet", soundStatefulSet, []kindtest.Case{
		{"what may change", []string{"  serviceName", "  replicas: 3\n  minReadySeconds: 4\n  " +
			"revisionHistoryLimit: 1\n  ordinals: {start: 2}\n  serviceName", "image: postgres", "image: other"}, nil},
		{"service", []string{"serviceName: db", "serviceName: other"}, []string{"Forbidden spec"}},
		{"claims", []string{"storage: 1Gi", "storage: 2Gi"}, []string{"Forbidden spec"}},
	})
	r := kindtest.Of(t, "StatefulSet")
	require.NotEmpty(t, r.ValidateName("a.b", false), "its name is part of its pods' host names")
	s := kindtest.Decode(t, r, soundStatefulSet).(*appsv1.StatefulSet)
	s.Spec.RevisionHistoryLimit = new(int32)
	*s.Spec.RevisionHistoryLimit = -1
	require.Equal(t, []string{"spec.revisionHistoryLimit: a negative value retains all historical revisions; a " +
		"value >= 0 is recommended"}, r.Warnings(s, nil))
	require.Empty(t, r.Warnings(s, s), "the spec has not changed")
}

func TestDaemonSet_ValidateRejects(t *testing.T) {
	t.Parallel()
	const set = `
metadata: {name: agent, namespace: default}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      containers: [{name: main, image: agent}]
`
	kindtest.Create(t, "DaemonSet", set, []kindtest.Case{
		{"no selector selects nothing", []string{"  selector: {matchLabels: {app: agent}}\n", ""},
			[]string{"Invalid spec.template.metadata.labels"}},
		{"empty selector", []string{"{matchLabels: {app: agent}}", "{}"}, []string{"Invalid spec.selector"}},
		{"both bounds", []string{"spec:\n  sel", "spec:\n  updateStrategy: {rollingUpdate: {maxSurge: 1, " +
			"maxUnavailable: 1}}\n  sel"}, []string{"Invalid spec.updateStrategy.rollingUpdate.maxSurge"}},
		{"no bound", []string{"spec:\n  sel", "spec:\n  updateStrategy: {rollingUpdate: {maxSurge: 0, " +
			"maxUnavailable: 0%}}\n  sel"}, []string{"Required spec.updateStrategy.rollingUpdate.maxUnavailable"}},
		{"surge alone", []string{"spec:\n  sel",
			"spec:\n  updateStrategy: {rollingUpdate: {maxSurge: 10%, maxUnavailable: 0}}\n  sel"}, nil},
		{"deadline", []string{"    spec:\n", "    spec:\n      activeDeadlineSeconds: 3\n"},
			[]string{"Forbidden spec.template.spec.activeDeadlineSeconds"}},
	})

	r := kindtest.Of(t, "DaemonSet")
	d := kindtest.Decode(t, r, set).(*appsv1.DaemonSet)
	r.PrepareCreate(d)
	require.Equal(t, "1", d.Annotations[appsv1.DeprecatedTemplateGeneration])
	same, other := kindtest.Decode(t, r, set).(*appsv1.DaemonSet), kindtest.Decode(t, r, set).(*appsv1.DaemonSet)
	other.Spec.Template.Spec.Containers[0].Image = "other"
	r.PrepareUpdate(same, d)
	require.Equal(t, "1", same.Annotations[appsv1.DeprecatedTemplateGeneration],
		"a client that leaves it out changes nothing")
	r.PrepareUpdate(other, d)
	require.Equal(t, "2", other.Annotations[appsv1.DeprecatedTemplateGeneration])
}

func TestControllerRevision_ValidateRejects(t *testing.T) {
	t.Parallel()
	const revision = "metadata: {name: a, namespace: default}\nrevision: 1\ndata: {spec: {}}\n"
	kindtest.Create(t, "ControllerRevision", revision, []kindtest.Case{
		{"revision", []string{"revision: 1", "revision: -1"}, []string{"Invalid revision"}},
		{"no data", []string{"data: {spec: {}}\n", ""}, []string{"Required data"}},
		{"data of nothing", []string{"data: {spec: {}}\n", "data: null\n"}, []string{"Required data"}},
		{"data of a list", []string{"data: {spec: {}}\n", "data: [1]\n"}, []string{"Required data"}},
	})
	kindtest.Update(t, "ControllerRevision", revision, []kindtest.Case{
		{"data", []string{"{spec: {}}", "{spec: {a: b}}"}, []string{"Invalid data"}},
		{"revision", []string{"revision: 1", "revision: 2"}, nil},
	})

	r := kindtest.Of(t, "ControllerRevision")
	with := func(data string) api.Object {
		return &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Data: runtime.RawExtension{Raw: []byte(data)}}
	}
	for data, same := range map[string]bool{
		`{"b":"<","a":[1,9007199254740993]}`:                     true,
		"{ \"a\": [1, 9007199254740993],\n \"b\": \"\\u003c\" }": true,
		`{"a":[9007199254740993,1],"b":"<"}`:                     false,
		`{"a":[1,9007199254740992],"b":"<"}`:                     false,
		`{"a":[1,9007199254740993],"b":"<","c":null}`:            false,
	} {
		require.Equal(t, same, len(r.ValidateUpdate(with(data), with(`{"a":[1,9007199254740993],"b":"<"}`))) == 0, data)
	}
}

func TestWorkloads_StatusErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind, old, status string
		want              []string
	}{
		{"Deployment", "{}", "{replicas: 1, readyReplicas: 1, availableReplicas: 2, updatedReplicas: 3, " +
			"unavailableReplicas: -1}", []string{
			"Invalid status.unavailableReplicas", "Invalid status.updatedReplicas", "Invalid status.availableReplicas",
			"Invalid status.availableReplicas"}},
		{"Deployment", "{collisionCount: 2}", "{collisionCount: 1}", []string{"Invalid status.collisionCount"}},
		{"Deployment", "{collisionCount: 2}", "{}", []string{"Invalid status.collisionCount"}},
		{"Deployment", "{collisionCount: 2}", "{collisionCount: 2, observedGeneration: -1}",
			[]string{"Invalid status.observedGeneration"}},
		{"StatefulSet", "{}", "{replicas: 1, currentReplicas: 2, updatedReplicas: 2}",
			[]string{"Invalid status.currentReplicas", "Invalid status.updatedReplicas"}},
		{"DaemonSet", "{}", "{currentNumberScheduled: -1, numberMisscheduled: -1, desiredNumberScheduled: -1, " +
			"numberReady: -1}", []string{
			"Invalid status.currentNumberScheduled", "Invalid status.numberMisscheduled",
			"Invalid status.desiredNumberScheduled", "Invalid status.numberReady"}},
		{"ReplicaSet", "{}", "{replicas: 1, fullyLabeledReplicas: 2}", []string{"Invalid status.fullyLabeledReplicas"}},
	} {
		r := kindtest.Of(t, c.kind)
		old, obj := kindtest.Decode(t, r, "status: "+c.old), kindtest.Decode(t, r, "status: "+c.status)
		require.ElementsMatch(t, c.want, kindtest.Refusals(r.Status.Validate(obj, old)), "%s: %s → %s", c.kind,
			c.old, c.status)
	}
}

func TestWarnings_OfPodsAndTemplates(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "Deployment")
	d := kindtest.Decode(t, r, `
metadata: {name: a.b}
spec:
  template:
    metadata: {annotations: {scheduler.alpha.kubernetes.io/critical-pod: ""}}
    spec:
      nodeSelector: {beta.kubernetes.io/os: linux}
      topologySpreadConstraints: [{topologyKey: failure-domain.beta.kubernetes.io/zone}]
      imagePullSecrets: [{name: a}, {name: a}, {}]
      hostAliases: [{ip: 10.0.0.1}, {ip: 10.0.0.1}]
      volumes: [{name: v, gitRepo: {repository: x}}]
      containers:
      - name: a
        env: [{name: X, value: a}, {name: X, value: $(X)b}, {name: X, value: c}]
        resources: {limits: {memory: 100m}}
        ports: [{containerPort: 80}, {containerPort: 80}]
      - {name: b, ports: [{containerPort: 80, hostPort: 8080}]}
`).(*appsv1.Deployment)
	require.Equal(t, []string{
		"metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS " +
			"label is recommended: [must not contain dots]",
		`spec.template.spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead`,
		`spec.template.spec.topologySpreadConstraints[0].topologyKey: failure-domain.beta.kubernetes.io/zone is deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
		"spec.template.spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
		`spec.template.metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the "priorityClassName" field instead`,
		"spec.template.spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
		`spec.template.spec.hostAliases[1].ip: duplicate ip "10.0.0.1"`,
		`spec.template.spec.imagePullSecrets[1].name: duplicate name "a"`,
		`spec.template.spec.imagePullSecrets[2].name: invalid empty name ""`,
		`spec.template.spec.containers[0].resources.limits[memory]: fractional byte value "100m" is invalid, must be an integer`,
		`spec.template.spec.containers[0].env[2]: hides previous definition of "X", which may be dropped when using apply`,
		"spec.template.spec.containers[0].ports[1]: duplicate port definition with " +
			"spec.template.spec.containers[0].ports[0]",
		"spec.template.spec.containers[1].ports[0]: overlapping port definition with " +
			"spec.template.spec.containers[0].ports[0]",
		"spec.template.spec.containers[1].ports[0]: overlapping port definition with " +
			"spec.template.spec.containers[0].ports[1]",
	}, r.Warnings(d, nil))
	changed := d.DeepCopy()
	require.Empty(t, r.Warnings(changed, d), "nothing has changed")

	pods := kindtest.Of(t, "Pod")
	p := kindtest.Decode(t, pods,
		"metadata: {name: a.b}\nspec: {terminationGracePeriodSeconds: -1, containers: [{name: a}]}").(*corev1.Pod)
	require.Equal(t, []string{
		"metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label " +
			"is recommended: [must not contain dots]",
		"spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
	}, pods.Warnings(p, nil))
	require.Empty(t, pods.Warnings(p, p.DeepCopy()))

	crons := kindtest.Of(t, "CronJob")
	c := kindtest.Decode(t, crons, "metadata: {name: c}\nspec: {schedule: TZ=UTC * * * * *}").(*batchv1.CronJob)
	require.Len(t, crons.Warnings(c, nil), 1)
}
