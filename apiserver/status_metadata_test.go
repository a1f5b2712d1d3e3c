package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/testenv"
)

// Metadata in a status write is validated as in a write to the object itself.
func TestStatus_MetadataIsValidated(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(deployments, with(deployment("web", 1), "finalizers", []any{"example.com/a"}))
	path := deployments + "/web/status"
	write := func(field string, value any) *answer {
		return s.patch(path, mergePatch, m{"metadata": m{field: value}})
	}
	for field, value := range map[string]any{
		"annotations": m{"a b": "c"}, "finalizers": []any{"example.com/a", "b"},
		"ownerReferences": []any{m{"kind": "Pod", "name": "a", "uid": "b"}},
	} {
		write(field, value).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "metadata."+field)
	}
	write("labels", m{"a": "b"}).ok(http.StatusOK)
	require.Nil(t, s.get(deployments+"/web").at("metadata", "labels"), "Deployments keep their labels")
	write("annotations", m{"a": "b"}).ok(http.StatusOK)
	require.EqualValues(t, 1, s.get(deployments+"/web").at("metadata", "generation"))

	s.delete(deployments+"/web", nil).ok(http.StatusOK)
	write("finalizers", []any{"example.com/a", "example.com/b"}).
		refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			"no new finalizers can be added if the object is being deleted")
	write("finalizers", nil).ok(http.StatusOK)
	s.gone(deployments + "/web")
}

// Metadata that controls an object's deletion requires the same rights as in other writes.
func TestStatus_MetadataRequiresTheUsualRights(t *testing.T) {
	t.Parallel()
	enforced := admission.Options{Enable: []string{"OwnerReferencesPermissionEnforcement"}}
	s := connect(t, testenv.Start(t, testenv.APIServerOnly(), testenv.WithAdmission(enforced)))
	s.create(deployments, deployment("web", 1))
	jane := s.may("jane", "apps", "deployments/status", "patch")
	path := deployments + "/web/status"
	jane.patch(path, mergePatch, m{"metadata": m{"annotations": m{"a": "b"}}}).ok(http.StatusOK)
	owned := m{"metadata": m{"ownerReferences": []any{m{"apiVersion": "v1", "kind": "ConfigMap", "name": "a",
		"uid": "b"}}}}
	require.True(t, jane.patch(path, mergePatch,
		owned).forbidden("cannot set an ownerRef on a resource you can't delete"))
	require.True(t, jane.patch(path, mergePatch, setTTL(`"10m"`)).forbidden(
		"which setting the annotation coxswain.dev/ttl takes"))
	s.patch(path, mergePatch, setTTL(`"10m"`)).ok(http.StatusOK)
}

// A kubelet writes statuses, but must not attract or release pods by their labels.
func TestStatus_NodesMayNotWriteLabelsOfPods(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(nodes, m{"metadata": m{"name": "node-a"}})
	s.create(pods, podOf("mine", m{"nodeName": "node-a"}))
	node := s.as("system:node:node-a", "system:nodes")
	write := func(path, field string, value any) *answer {
		return node.patch(path+"/status", mergePatch, m{"metadata": m{field: value}})
	}
	write(nodes+"/node-a", "annotations", m{"example.com/cni": "10.0.0.0/24"}).ok(http.StatusOK)
	require.Equal(t, "10.0.0.0/24", s.get(nodes+"/node-a").at("metadata", "annotations", "example.com/cni"))
	write(nodes+"/node-a", "labels", m{"example.com/a": "b", "kubernetes.io/hostname": "node-a"}).ok(http.StatusOK)
	require.True(t, write(nodes+"/node-a", "labels", m{"node-restriction.kubernetes.io/a": "b"}).forbidden(
		"is not allowed to modify labels"))
	owner := []any{m{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}}
	require.True(t, write(nodes+"/node-a", "ownerReferences",
		owner).forbidden("is not allowed to modify ownerReferences"))
	write(pods+"/mine", "annotations", m{"a": "b"}).ok(http.StatusOK)
	require.True(t, write(pods+"/mine", "labels", m{"a": "b"}).forbidden("cannot update labels through pod status"))
	write(pods+"/mine", "ownerReferences", owner).ok(http.StatusOK)
	require.Nil(t, s.get(pods+"/mine").at("metadata", "ownerReferences"), "pods keep their owners")
}
