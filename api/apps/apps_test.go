package apps_test

import (
	"testing"

	"strings"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

const soundDeployment = `
metadata: {name: web, namespace: default}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: main, image: nginx}
`

func TestDeployment_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "Deployment", soundDeployment, []kindtest.Case{
		{"replicas", []string{"replicas: 3", "replicas: -1"}, []string{"Invalid spec.replicas"}},
		{"no selector", []string{"  selector: {matchLabels: {app: web}}\n", ""},
			[]string{"Required spec.selector", "Invalid spec.template.metadata.labels"}},
		{"empty selector", []string{"{matchLabels: {app: web}}", "{}"}, []string{"Invalid spec.selector"}},
		{"selector does not match", []string{"{matchLabels: {app: web}}", "{matchLabels: {app: other}}"},
			[]string{"Invalid spec.template.metadata.labels"}},
		{"template", []string{"name: main", "name: ''"}, []string{"Required spec.template.spec.containers[0].name"}},
		{"restart policy", []string{"    spec:", "    spec:\n      restartPolicy: Never"},
			[]string{"NotSupported spec.template.spec.restartPolicy"}},
		{"deadline", []string{"    spec:", "    spec:\n      activeDeadlineSeconds: 3"},
			[]string{"Forbidden spec.template.spec.activeDeadlineSeconds"}},
		{"strategy", []string{"replicas: 3", "strategy: {type: Slow}"}, []string{"NotSupported spec.strategy"}},
		{"recreate with bounds", []string{"replicas: 3", "strategy: {type: Recreate, rollingUpdate: {maxSurge: 1}}"},
			[]string{"Forbidden spec.strategy.rollingUpdate"}},
		{"no room to move", []string{"replicas: 3", "strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0%}}"},
			[]string{"Invalid spec.strategy.rollingUpdate.maxUnavailable"}},
		{"over 100%", []string{"replicas: 3", "strategy: {rollingUpdate: {maxUnavailable: 101%}}"},
			[]string{"Invalid spec.strategy.rollingUpdate.maxUnavailable"}},
		{"no percentage", []string{"replicas: 3", "strategy: {rollingUpdate: {maxSurge: some}}"},
			[]string{"Invalid spec.strategy.rollingUpdate.maxSurge"}},
		{"deadline within min ready", []string{"replicas: 3", "minReadySeconds: 700"},
			[]string{"Invalid spec.progressDeadlineSeconds"}},
		{"history", []string{"replicas: 3", "revisionHistoryLimit: -1"}, []string{"Invalid spec.revisionHistoryLimit"}},
	})
	kindtest.Update(t, "Deployment", soundDeployment, []kindtest.Case{
		{"selector", []string{"{matchLabels: {app: web}}", "{matchLabels: {app: web, x: y}}"},
			[]string{"Invalid spec.selector"}},
		{"image", []string{"image: nginx", "image: other"}, nil},
	})
}

func TestReplicaSet_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "ReplicaSet", soundDeployment, []kindtest.Case{
		{"replicas", []string{"replicas: 3", "replicas: -1"}, []string{"Invalid spec.replicas"}},
		{"selector does not match", []string{"{matchLabels: {app: web}}", "{matchLabels: {app: other}}"},
			[]string{"Invalid spec.template.metadata.labels"}},
		{"min ready", []string{"replicas: 3", "minReadySeconds: -7"}, []string{"Invalid spec.minReadySeconds"}},
	})
	kindtest.Update(t, "ReplicaSet", soundDeployment, []kindtest.Case{
		{"selector", []string{"{matchLabels: {app: web}}", "{matchLabels: {app: web, x: y}}"},
			[]string{"Invalid spec.selector"}},
	})
	r := kindtest.Of(t, "ReplicaSet")
	old, obj := kindtest.Decode(t, r, soundDeployment),
		kindtest.Decode(t, r, soundDeployment+"status: {replicas: 1, readyReplicas: 2, availableReplicas: -1}")
	require.ElementsMatch(t, []string{"Invalid status.availableReplicas", "Invalid status.readyReplicas"},
		kindtest.Refusals(r.Status.Validate(obj, old)))
}

func TestDeployment_Defaults(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "Deployment")
	d := kindtest.Decode(t, r, soundDeployment+"  minReadySeconds: 0\n").(*appsv1.Deployment)
	require.Equal(t, ptr.To(intstr.FromString("25%")), d.Spec.Strategy.RollingUpdate.MaxSurge)
	require.Equal(t, ptr.To(intstr.FromString("25%")), d.Spec.Strategy.RollingUpdate.MaxUnavailable)
	require.Equal(t, ptr.To[int32](10), d.Spec.RevisionHistoryLimit)
	require.Equal(t, ptr.To[int32](600), d.Spec.ProgressDeadlineSeconds)
	require.Nil(t, d.Spec.Template.Spec.EnableServiceLinks, "that is a pod's default, not a template's")
	_, _, selector := r.Scale.Get(d)
	require.Equal(t, "app=web", selector)
	require.Equal(t, []any{"web", "0/3", int64(0), int64(0), "<unknown>", "main", "nginx", "app=web"}, r.Cells(d))
}

func TestStatefulAndDaemonSet_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "StatefulSet", soundDeployment, []kindtest.Case{
		{"strategy", []string{"replicas: 3", "updateStrategy: {type: Slow}"}, []string{"Invalid spec.updateStrategy"}},
		{"partition", []string{"replicas: 3", "updateStrategy: {rollingUpdate: {partition: -1}}"},
			[]string{"Invalid spec.updateStrategy.rollingUpdate.partition"}},
		{"management", []string{"replicas: 3", "podManagementPolicy: Odd"},
			[]string{"Invalid spec.podManagementPolicy"}},
		{"claim", []string{"replicas: 3", "volumeClaimTemplates: [{metadata: {name: d}, spec: {accessModes: " +
			"[ReadWriteOnce]}}]"}, []string{"Required spec.volumeClaimTemplates[0].spec.resources[storage]"}},
	})
	kindtest.Update(t, "StatefulSet", soundDeployment, []kindtest.Case{
		{"replicas", []string{"replicas: 3", "replicas: 4"}, nil},
		{"service", []string{"replicas: 3", "replicas: 3\n  serviceName: other"}, []string{"Forbidden spec"}},
	})
	daemons := strings.Replace(soundDeployment, "  replicas: 3\n", "  minReadySeconds: 0\n", 1)
	kindtest.Create(t, "DaemonSet", daemons, []kindtest.Case{
		{"both bounds", []string{"minReadySeconds: 0", "updateStrategy: {rollingUpdate: {maxSurge: 1}}"},
			[]string{"Invalid spec.updateStrategy.rollingUpdate.maxSurge"}},
		{"no bound", []string{"minReadySeconds: 0", "updateStrategy: {rollingUpdate: {maxUnavailable: 0}}"},
			[]string{"Required spec.updateStrategy.rollingUpdate.maxUnavailable"}},
		{"strategy", []string{"minReadySeconds: 0", "updateStrategy: {type: Slow}"},
			[]string{"NotSupported spec.updateStrategy"}},
	})
}
