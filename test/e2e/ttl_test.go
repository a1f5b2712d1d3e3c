//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// refuseExpiry is a policy that rejects the deletion of expired objects.
const refuseExpiry = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: keep}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [DELETE], resources: [configmaps, namespaces]}]}
  validations: [{expression: "request.userInfo.username != 'system:apiserver-ttl'"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: keep}
spec: {policyName: keep, validationActions: [Deny]}
`

// TestTTL_SurvivesAKill kills the control plane with kill -9 when the leases of a ConfigMap and of a Namespace have
// ended but neither has been deleted. After a restart it deletes them, the Namespace with its contents, once the policy
// allows it.
func TestTTL_SurvivesAKill(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c := up(t, dir, "--nodes", "0")
	_, err := c.kubectlWith(refuseExpiry, "apply", "-f", "-")
	require.NoError(t, err)
	c.run(kubectl, "create", "configmap", "short")
	c.run(kubectl, "create", "namespace", "preview")
	c.run(kubectl, "create", "configmap", "content", "-n", "preview")
	c.run(kubectlLite, "ttl", "configmap/short", "1s")
	c.run(kubectlLite, "ttl", "namespace/preview", "1s")
	eventually(t, time.Minute, "both have been refused to go", func() bool {
		_, metrics := c.get("/metrics")
		return strings.Contains(metrics, "coxswain_ttl_overdue_objects 2\n")
	})
	c.server.kill()

	c = up(t, dir, "--nodes", "0")
	_, err = c.client.CoreV1().ConfigMaps("default").Get(t.Context(), "short", metav1.GetOptions{})
	require.NoError(t, err)
	preview, err := c.client.CoreV1().Namespaces().Get(t.Context(), "preview", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, corev1.NamespaceActive, preview.Status.Phase)
	c.run(kubectl, "delete", "validatingadmissionpolicybinding", "keep")
	eventually(t, time.Minute, "both are gone", func() bool {
		_, first := c.client.CoreV1().ConfigMaps("default").Get(t.Context(), "short", metav1.GetOptions{})
		_, second := c.client.CoreV1().Namespaces().Get(t.Context(), "preview", metav1.GetOptions{})
		return apierrors.IsNotFound(first) && apierrors.IsNotFound(second)
	})
	left, err := c.client.CoreV1().ConfigMaps("preview").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, left.Items)
}
