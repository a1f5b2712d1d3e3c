package autoscaling_test

import (
	"strings"
	"testing"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestAutoscaler_ValidateRejects(t *testing.T) {
	t.Parallel()
	const hpa = `
metadata: {name: h, namespace: default}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 1
  maxReplicas: 3
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
`
	const kind = "autoscaling/v2 HorizontalPodAutoscaler"
	metric := func(text string) []string {
		return []string{"{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}",
			text}
	}
	kindtest.Create(t, kind, hpa, []kindtest.Case{
		{"bounds", []string{"maxReplicas: 3", "maxReplicas: 0"},
			[]string{"Invalid spec.maxReplicas", "Invalid spec.maxReplicas"}},
		{"below nothing", []string{"minReplicas: 1", "minReplicas: -1"}, []string{"Invalid spec.minReplicas"}},
		{"to zero by cpu", []string{"minReplicas: 1", "minReplicas: 0"}, []string{"Forbidden spec.metrics"}},
		{"reference", []string{"kind: Deployment, name: web", "kind: a/b"},
			[]string{"Invalid spec.scaleTargetRef.kind", "Required spec.scaleTargetRef.name"}},
		{"no type", metric("{resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}"),
			[]string{"Required spec.metrics[0].type"}},
		{"no target type", metric("{type: Resource, resource: {name: cpu, target: {averageUtilization: 50}}}"),
			[]string{"Required spec.metrics[0].resource.target.type", "Invalid spec.metrics[0].resource.target.type"}},
		{"other source", metric("{type: Resource, pods: {metric: {name: m}, target: {type: AverageValue, " +
			"averageValue: 1}}}"), []string{"Required spec.metrics[0].resource"}},
		{"two sources", metric("{type: Resource, resource: {name: cpu, target: {type: Utilization, " +
			"averageUtilization: 50}}, pods: {metric: {name: m}, target: {type: AverageValue, averageValue: 1}}}"),
			[]string{"Forbidden spec.metrics[0].pods"}},
		{"both values", metric("{type: Resource, resource: {name: cpu, target: {type: Utilization, " +
			"averageUtilization: 50, averageValue: 1}}}"),
			[]string{"Forbidden spec.metrics[0].resource.target.averageValue"}},
		{"an object's both values", metric("{type: Object, object: {describedObject: {kind: A, name: b}, metric: " +
			"{name: m}, target: {type: Value, value: 1, averageValue: 1}}}"), nil},
		{"an external's both values", metric("{type: External, external: {metric: {name: m}, target: {type: " +
			"Value, value: 1, averageValue: 1}}}"), []string{"Forbidden spec.metrics[0].external.target.value"}},
		{"nothing to reach", metric("{type: Pods, pods: {metric: {}, target: {type: AverageValue, value: -1}}}"),
			[]string{"Required spec.metrics[0].pods.metric.name", "Invalid spec.metrics[0].pods.target.value",
				"Required spec.metrics[0].pods.target.averageValue"}},
		{"container", metric("{type: ContainerResource, containerResource: {name: mem, container: A_b, target: " +
			"{type: Utilization, averageUtilization: 0}}}"),
			[]string{"Invalid spec.metrics[0].containerResource.name", "Invalid spec.metrics[0].containerResource.name",
				"Invalid spec.metrics[0].containerResource.container",
				"Invalid spec.metrics[0].containerResource.target.averageUtilization"}},
		{"too many to ask for", metric("{type: Resource, resource: {name: cpu, target: {type: Utilization, " +
			"averageUtilization: 50}}}" + strings.Repeat(", {type: External}", 100)), []string{"TooMany spec.metrics"}},
		{"behavior", []string{"  metrics:", "  behavior: {scaleUp: {stabilizationWindowSeconds: 3601, " +
			"selectPolicy: Best, policies: [{type: Some, value: 0, periodSeconds: 1801}]}}\n  metrics:"}, []string{
			"Invalid spec.behavior.scaleUp.stabilizationWindowSeconds",
			"NotSupported spec.behavior.scaleUp.selectPolicy",
			"NotSupported spec.behavior.scaleUp.policies[0].type", "Invalid spec.behavior.scaleUp.policies[0].value",
			"Invalid spec.behavior.scaleUp.policies[0].periodSeconds"}},
	})
}

func TestHorizontalPodAutoscaler_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "HorizontalPodAutoscaler",
		"spec: {scaleTargetRef: {kind: Deployment, name: d}, minReplicas: 2, maxReplicas: 5}", []kindtest.Case{
			{"bounds", []string{"maxReplicas: 5", "maxReplicas: 1"}, []string{"Invalid spec.maxReplicas"}},
			{"zero", []string{"minReplicas: 2", "minReplicas: 0"}, []string{"Forbidden spec.metrics"}},
			{"target", []string{", name: d", ""}, []string{"Required spec.scaleTargetRef.name"}},
			{"metric", []string{"spec: {", "spec: {metrics: [{type: Resource}], "},
				[]string{"Required spec.metrics[0].resource"}},
		})
}
