package apiserver_test

import (
	"maps"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A PUT of an object that does not exist creates it for the same kinds as in Kubernetes, and for no others.
func TestUpdate_CreatesSomeKinds(t *testing.T) {
	t.Parallel()
	s := start(t)
	for path, body := range map[string]m{
		"/apis/coordination.k8s.io/v1/namespaces/default/leases": {"metadata": m{"resourceVersion": "7"},
			"spec": m{"holderIdentity": "me"}},
		"/api/v1/namespaces/default/endpoints":                               {},
		"/api/v1/namespaces/default/limitranges":                             {},
		"/api/v1/namespaces/default/services":                                {"spec": m{"ports": []any{m{"port": 80}}}},
		"/apis/rbac.authorization.k8s.io/v1/clusterroles":                    {},
		"/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles":        {},
		"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings":             {"roleRef": m{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "new"}},
		"/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings": {"roleRef": m{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "new"}},
		"/apis/node.k8s.io/v1/runtimeclasses": {"metadata": m{"resourceVersion": "7"},
			"handler": "h"},
	} {
		made := s.put(path+"/new", body).ok(http.StatusCreated)
		require.NotEmpty(t, made.at("metadata", "uid"), path)
		require.Equal(t, "new", made.at("metadata", "name"))
		s.put(path+"/new", made.object().Object).ok(http.StatusOK)
		without := maps.Clone(body)
		delete(without, "metadata")
		s.put(path+"/without", without).ok(http.StatusCreated)
		dry := s.put(path+"/dry?dryRun=All", body).ok(http.StatusCreated)
		require.Equal(t, "dry", dry.at("metadata", "name"))
		s.gone(path + "/dry")
	}
	s.put(configMaps+"/new", configMap("new")).refused(http.StatusNotFound, metav1.StatusReasonNotFound,
		`configmaps "new" not found`)
	s.put(deployments+"/new", deployment("new", 1)).refused(http.StatusNotFound, metav1.StatusReasonNotFound,
		`"new" not found`)
	other := m{"metadata": m{"uid": "11111111-2222-3333-4444-555555555555"}}
	s.put("/api/v1/namespaces/default/endpoints/gone", other).refused(http.StatusConflict, metav1.StatusReasonConflict,
		"Precondition failed: UID in precondition")
}

// An update without a resourceVersion overwrites the stored object, except for the kinds where that would be a mistake.
func TestUpdate_SomeKindsMustNameTheRevision(t *testing.T) {
	t.Parallel()
	s := start(t)
	const leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	s.create(leases, m{"metadata": m{"name": "l"}})
	status := s.put(leases+"/l", m{"spec": m{"holderIdentity": "me"}}).refused(http.StatusUnprocessableEntity,
		metav1.StatusReasonInvalid,
		`Lease.coordination.k8s.io "l" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update`)
	require.Equal(t, "metadata.resourceVersion", status.Details.Causes[0].Field)
	const budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
	s.create(budgets, m{"metadata": m{"name": "b"}, "spec": m{"minAvailable": 1}})
	s.put(budgets+"/b/status", m{"metadata": m{"name": "b"}}).refused(http.StatusUnprocessableEntity,
		metav1.StatusReasonInvalid, "must be specified for an update")
	s.put(budgets+"/none", m{"spec": m{"minAvailable": 1}}).refused(http.StatusNotFound, metav1.StatusReasonNotFound,
		`"none" not found`)
	s.patch(leases+"/l", mergePatch, m{"spec": m{"holderIdentity": "me"}}).ok(http.StatusOK)
	s.create(configMaps, configMap("c"))
	s.put(configMaps+"/c", configMap("c")).ok(http.StatusOK)
}
