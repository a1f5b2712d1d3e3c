package apiserver_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Every cluster has Kubernetes' own flow schemas, each of which refers to a level that is there.
func TestBootstrap_HasFlowSchemasAndTheirLevels(t *testing.T) {
	t.Parallel()
	client := start(t).typed().FlowcontrolV1()
	levels, err := client.PriorityLevelConfigurations().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, l := range levels.Items {
		names = append(names, l.Name)
		require.Equal(t, "true", l.Annotations[flowv1.AutoUpdateAnnotationKey], l.Name)
		require.Equal(t, l.Name == "exempt", l.Spec.Type == flowv1.PriorityLevelEnablementExempt, l.Name)
	}
	require.Equal(t, []string{"catch-all", "exempt", "global-default", "leader-election", "node-high", "system", "workload-high", "workload-low"}, names)

	schemas, err := client.FlowSchemas().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, schemas.Items, 15)
	for _, s := range schemas.Items {
		require.True(t, slices.Contains(names, s.Spec.PriorityLevelConfiguration.Name), s.Name)
		require.Equal(t, flowv1.ConditionFalse, s.Status.Conditions[0].Status, s.Name)
		// They pass their own validation.
		s.Labels = map[string]string{"a": "b"}
		_, err := client.FlowSchemas().Update(t.Context(), &s, metav1.UpdateOptions{})
		require.NoError(t, err, s.Name)
	}
}

// A pod's row says that it is done, and a DaemonSet counts its templates.
func TestTable_SaysWhatIsDone(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create("/api/v1/namespaces/default/pods", pod("p"))
	s.patch("/api/v1/namespaces/default/pods/p/status", mergePatch, m{"status": m{"phase": "Succeeded"}}).ok(http.StatusOK)
	table := s.get("/api/v1/namespaces/default/pods/p", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").ok(http.StatusOK)
	require.Equal(t, []any{map[string]any{"type": "Completed", "status": "True", "reason": "Succeeded", "message": "The pod has completed successfully."}},
		table.at("rows").([]any)[0].(map[string]any)["conditions"])
}
