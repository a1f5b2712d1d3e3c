package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func labeled(name string, labels m) m {
	return m{"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": name, "labels": labels}}
}

func TestWebhooks_MutateAndReject(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.mutates("m", h.hook("mutate.example.com", nil))
	h.validates("v", h.hook("validate.example.com", nil))
	h.on("mutate.example.com", respondPatch(label("b", "2")))
	created := h.create(configMaps, labeled("c", m{"a": "1"}))
	require.Equal(t, m{"a": "1", "b": "2"}, created.at("metadata", "labels"))
	for i, name := range []string{"mutate.example.com", "validate.example.com"} {
		review := h.once(name)
		require.Equal(t, "CREATE", review["operation"])
		require.Equal(t, "c", review["name"])
		require.Equal(t, "default", review["namespace"])
		require.Nil(t, review["oldObject"])
		require.Equal(t, m{"group": "", "version": "v1", "kind": "ConfigMap"}, review["kind"])
		require.Equal(t, m{"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}, review["options"])
		require.Len(t, review["object"].(m)["metadata"].(m)["labels"], i+1)
		require.NotEmpty(t, review["object"].(m)["metadata"].(m)["managedFields"])
	}
	h.on("mutate.example.com", nil)
	h.on("validate.example.com", respond(m{"allowed": false, "status": m{"code": 403, "reason": "Forbidden",
		"message": "not today"}}))
	h.do(http.MethodPost, configMaps, labeled("d", nil)).refused(403, "Forbidden",
		`admission webhook "validate.example.com" denied the request: not today`)
	h.gone(configMaps + "/d")
	h.delete(configMaps+"/c", nil).refused(403, "Forbidden", "not today")
	h.get(configMaps + "/c").ok(200)
	h.on("validate.example.com", nil)
	h.delete(configMaps+"/c", nil).ok(200)
	reviews := h.asked("validate.example.com")
	require.Equal(t, "DELETE", reviews[len(reviews)-1]["operation"])
	require.Nil(t, reviews[len(reviews)-1]["object"])
	require.Equal(t, "c", reviews[len(reviews)-1]["oldObject"].(m)["metadata"].(m)["name"])
	h.get(webhookCalls).ok(200)
}

func TestWebhooks_ABrokenOneCanBeRemoved(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	broken := h.hook("broken.example.com", m{
		"rules": []m{{"apiGroups": []string{"*"}, "apiVersions": []string{"*"}, "resources": []string{"*/*"},
			"operations": []string{"*"}}},
		"clientConfig": m{"url": "https://" + closedPort(t) + "/x"}})
	h.validates("v", broken)
	h.mutates("m", broken)
	h.do(http.MethodPost, configMaps, labeled("d", nil)).refused(500, "InternalError",
		`Internal error occurred: failed calling webhook "broken.example.com": failed to call webhook: Post "https://127.`)
	h.do(http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", m{"apiVersion": "authorization.k8s.io/v1",
		"kind": "SelfSubjectAccessReview", "spec": m{"nonResourceAttributes": m{"path": "/x", "verb": "get"}}}).ok(201)
	h.delete(mutatingHooks+"/m", nil).ok(200)
	h.do(http.MethodPost, configMaps, labeled("d", nil)).refused(500, "InternalError", "connection refused")
	h.delete(validatingHooks+"/v", nil).ok(200)
	h.create(configMaps, labeled("d", nil))
}
