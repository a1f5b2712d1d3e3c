//go:build e2e

package e2e

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPolicies_RejectWarnAndMutate creates admission policies with the real kubectl, and triggers them.
func TestPolicies_RejectWarnAndMutate(t *testing.T) {
	t.Parallel()
	kubectl := os.Getenv("KUBECTL")
	require.NotEmpty(t, kubectl, "make e2e sets KUBECTL")
	c := up(t, dataDir(t), "--nodes", "0")
	c.run(kubectl, "apply", "-f", "testdata/policy.yaml")
	_, stderr, err := c.try(kubectl, "create", "deployment", "web", "--image=web:1", "--replicas=6")
	require.Error(t, err)
	require.Contains(t, stderr,
		`deployments.apps "web" is forbidden: ValidatingAdmissionPolicy 'few-replicas' with binding 'few-replicas' denied request: at most 5 replicas, not 6`)
	c.run(kubectl, "create", "deployment", "web", "--image=web:1", "--replicas=5")

	c.run(kubectl, "patch", "validatingadmissionpolicybinding", "few-replicas", "--type=merge", "-p",
		`{"spec":{"validationActions":["Warn"]}}`)
	_, stderr, err = c.try(kubectl, "create", "deployment", "wide", "--image=web:1", "--replicas=6")
	require.NoError(t, err)
	require.Contains(t, stderr, "Warning: Validation failed for ValidatingAdmissionPolicy 'few-replicas' with "+
		"binding 'few-replicas': at most 5 replicas, not 6")

	c.run(kubectl, "apply", "-f", "testdata/mutation.yaml")
	c.run(kubectl, "create", "configmap", "c")
	require.Contains(t, c.run(kubectl, "get", "configmap", "c", "--show-labels"), "made-by=kubernetes-admin")

	c.run(kubectl, "patch", "validatingadmissionpolicy", "few-replicas", "--type=merge", "-p",
		`{"spec":{"validations":[{"expression":"object.replicas <= 5"}]}}`)
	c.run(kubectl, "wait", "validatingadmissionpolicy/few-replicas", "--for=jsonpath={.status.observedGeneration}=2")
	require.Contains(t, c.run(kubectl, "describe", "validatingadmissionpolicy", "few-replicas"),
		"apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'")

	_, stderr, err = c.try(kubectl, "patch", "validatingadmissionpolicy", "few-replicas", "--type=merge", "-p",
		`{"spec":{"validations":[{"expression":"object.spec.replicas <"}]}}`)
	require.Error(t, err)
	require.Contains(t, stderr, "spec.validations[0].expression: Invalid value: \"object.spec.replicas <\": "+
		"compilation failed: ERROR: <input>:1:23: Syntax error")
}
