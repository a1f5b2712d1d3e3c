package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNamespace_MustExistForContent(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.do(http.MethodPost, "/api/v1/namespaces/nowhere/configmaps", configMap("a")).
		refused(http.StatusNotFound, metav1.StatusReasonNotFound, `namespaces "nowhere" not found`)
	require.Empty(t, s.get("/api/v1/namespaces/nowhere/configmaps").ok(http.StatusOK).names())
}

func TestNamespace_LifeCycle(t *testing.T) {
	t.Parallel()
	s := start(t)
	created := s.create(namespaces, m{"metadata": m{"name": "team"}})
	require.Equal(t, []any{"kubernetes"}, created.at("spec", "finalizers"))
	require.Equal(t, "Active", created.at("status", "phase"))
	require.Equal(t, "team", created.object().GetLabels()[corev1.LabelMetadataName])
	s.create("/api/v1/namespaces/team/configmaps", configMap("a"))

	marked := s.delete(namespaces+"/team", nil).ok(http.StatusOK)
	require.Equal(t, "Terminating", marked.at("status", "phase"))
	require.NotNil(t, marked.object().GetDeletionTimestamp())
	status := s.do(http.MethodPost, "/api/v1/namespaces/team/configmaps", configMap("b")).
		refused(http.StatusForbidden, metav1.StatusReasonForbidden,
			`configmaps "b" is forbidden: unable to create new content in namespace team because it is being terminated`)
	require.Equal(t, corev1.NamespaceTerminatingCause, status.Details.Causes[0].Type)
	s.patch("/api/v1/namespaces/team/configmaps/a", mergePatch, `{"data":{"x":"y"}}`).ok(http.StatusOK)
	s.patch(namespaces+"/team", mergePatch, `{"spec":{"finalizers":[]}}`).ok(http.StatusOK)
	s.get(namespaces + "/team").ok(http.StatusOK)

	finalized := marked.object()
	finalized.Object["spec"] = m{}
	s.put(namespaces+"/team/finalize", finalized.Object).ok(http.StatusOK)
	s.gone(namespaces + "/team")
}

// Once the deletion of a namespace has been answered, no object can be created in it.
func TestNamespace_RefusesContentFromTheMomentOfItsDeletion(t *testing.T) {
	t.Parallel()
	s := start(t)
	for range 30 {
		name := s.create(namespaces, m{"metadata": m{"generateName": "n-"}}).object().GetName()
		s.create(namespaces+"/"+name+"/configmaps", configMap("a"))
		s.delete(namespaces+"/"+name, nil).ok(http.StatusOK)
		s.do(http.MethodPost, namespaces+"/"+name+"/configmaps", configMap("b")).ok(http.StatusForbidden)
		s.put(namespaces+"/"+name+"/finalize", m{"metadata": m{"name": name}}).ok(http.StatusOK)
		s.do(http.MethodPost, namespaces+"/"+name+"/configmaps", configMap("c")).ok(http.StatusNotFound)
	}
}

func TestNamespace_SystemNamespacesStay(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, name := range []string{"default", "kube-system", "kube-public"} {
		s.delete(namespaces+"/"+name, nil).
			refused(http.StatusForbidden, metav1.StatusReasonForbidden, `namespaces "`+name+
				`" is forbidden: this namespace may not be deleted`)
	}
	require.Equal(t, []string{"default", "kube-node-lease", "kube-public", "kube-system"}, s.get(namespaces).names())
	s.delete(namespaces+"/kube-node-lease", nil).ok(http.StatusOK)
}

func TestNamespace_StatusSubresource(t *testing.T) {
	t.Parallel()
	s := start(t)
	require.Equal(t, "default", s.get(namespaces+"/default/status").ok(http.StatusOK).at("metadata", "name"))
	s.patch(namespaces+"/default/status", mergePatch,
		`{"status":{"conditions":[{"type":"NamespaceContentRemaining","status":"False"}]}}`).ok(http.StatusOK)
	require.Len(t, s.get(namespaces+"/default").at("status", "conditions"), 1)
}
