package apiserver_test

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

// The server's own writes are recorded like the requests of its clients.
func TestAudit_RecordsTheServersOwnWrites(t *testing.T) {
	t.Parallel()
	auditor, log := openAudit(t, "rules: [{level: Request}]\n")
	a := assemble(t, builtin.Kinds(), apiserver.Options{Audit: auditor, Admission: withoutAccounts})
	s := &auditedServer{a.server, log}
	a.create(configMaps, withTTL(configMap("short"), "1h"))
	a.end("core/configmaps/default/short")
	a.defineGadgets()
	a.create("/apis/example.org/v1/namespaces/default/gadgets", m{"apiVersion": "example.org/v1",
		"kind": "Gadget", "metadata": m{"name": "g"}})
	a.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.example.org", nil).ok(http.StatusOK)
	const server, access = "system:apiserver", "/apis/rbac.authorization.k8s.io/v1/"
	for _, want := range []struct{ user, verb, uri string }{
		{server, "create", "/api/v1/namespaces"},
		{server, "create", "/api/v1/namespaces/default/services"},
		{server, "create", access + "clusterroles"},
		{server, "create", access + "clusterrolebindings"},
		{server, "create", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"},
		{server, "create", "/apis/apiregistration.k8s.io/v1/apiservices"},
		{server, "update", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.example.org"},
		{"system:apiserver-ttl", "delete", configMaps + "/short"},
		{"system:apiserver-definitions", "deletecollection", "/apis/example.org/v1/gadgets"},
	} {
		assert.Eventually(t, func() bool {
			for _, e := range s.all() {
				if e.User.Username == want.user && e.Verb == want.verb && e.RequestURI == want.uri {
					return e.ResponseStatus.Code < 300 && e.Stage == "ResponseComplete" && len(e.ObjectRef) > 0
				}
			}
			return false
		}, patience, tick, "%+v", want)
	}
	for _, e := range s.all() {
		if e.User.Username == server {
			require.NotContains(t, e.RequestURI, "claims", "internal documents are not recorded")
			require.NotEqual(t, e.Verb == "delete", len(e.RequestObject) > 0, "%s %s", e.Verb, e.RequestURI)
		}
	}
}

// annotator starts a conversion webhook that adds a time to live to objects in the stored version.
func annotator(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review m
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		request := review["request"].(m)
		for _, obj := range request["objects"].([]any) {
			o := obj.(m)
			if o["apiVersion"] = request["desiredAPIVersion"]; strings.HasSuffix(o["apiVersion"].(string), "/v1") {
				o["metadata"].(m)["annotations"] = m{"coxswain.dev/ttl": "1h"}
			}
		}
		_ = json.NewEncoder(w).Encode(m{"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
			"response": m{"uid": request["uid"], "convertedObjects": request["objects"], "result": m{"status": "Success"}}})
	}))
	t.Cleanup(server.Close)
	return server
}

// The annotation that is stored requires the right to delete, even if a webhook has added it.
func TestTTL_OfAConversionRequiresTheRightToDelete(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{Admission: withoutAccounts})
	hook := annotator(t)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	version := func(name string) m {
		return m{"name": name, "served": true, "storage": name == "v1", "schema": m{"openAPIV3Schema": m{"type": "object",
			"x-kubernetes-preserve-unknown-fields": true}}}
	}
	a.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", m{"metadata": m{"name": "things.example.org"},
		"spec": m{"group": "example.org", "scope": "Namespaced", "names": m{"plural": "things", "kind": "Thing"},
			"versions": []m{version("v1"), version("v2")}, "conversion": m{"strategy": "Webhook", "webhook": m{
				"conversionReviewVersions": []string{"v1"},
				"clientConfig":             m{"url": hook.URL, "caBundle": authority}}}}})
	const things = "/apis/example.org/v2/namespaces/default/things"
	require.Eventually(t, func() bool { return a.get(things).code == http.StatusOK }, patience, tick)
	for user, verbs := range map[string][]string{"jane": {"create"}, "root": {"create", "delete"}} {
		a.create(clusterRoles, m{"metadata": m{"name": user}, "rules": []m{
			{"apiGroups": []string{"example.org"}, "resources": []string{"things"}, "verbs": verbs}}})
		a.create(clusterRoleBindings, clusterRoleBinding(user, user, subject("User", user)))
	}
	thing := m{"apiVersion": "example.org/v2", "kind": "Thing", "metadata": m{"name": "a"}}
	res := a.as("jane").do(http.MethodPost, things, thing)
	require.Equal(t, http.StatusForbidden, res.code, "%s", res.body)
	require.Empty(t, a.lifetimes())
	a.as("root").create(things, thing)
	require.Len(t, a.lifetimes(), 1)
}
