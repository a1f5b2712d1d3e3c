package apiserver_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

func secret(name, value string) m {
	return m{"apiVersion": "v1", "kind": "Secret", "metadata": m{"name": name}, "stringData": m{"password": value}}
}

// endNamespace completes the deletion of a namespace, like its controller.
func (s *server) endNamespace(name string) {
	s.t.Helper()
	s.delete(namespaces+"/"+name, nil).ok(http.StatusOK)
	s.put(namespaces+"/"+name+"/finalize", m{"metadata": m{"name": name}}).ok(http.StatusOK)
	s.gone(namespaces + "/" + name)
}

const expired = "too old"

// refusedWatch requires that a watch ends at once with 410.
func (s *server) refusedWatch(path string) {
	s.t.Helper()
	e := s.watch(path).expect("ERROR", "")
	require.EqualValues(s.t, http.StatusGone, e.Object.Object["code"], path)
	require.Equal(s.t, string(metav1.StatusReasonExpired), e.Object.Object["reason"])
	require.Equal(s.t, "The resourceVersion for the provided watch is too old.", e.Object.Object["message"])
}

// The tenant of a namespace cannot read objects of a deleted namespace of that name, by any way to read the past.
func TestPast_OfANamespaceBeginsWithItsCreation(t *testing.T) {
	t.Parallel()
	s := start(t)
	const secrets = namespaces + "/team/secrets"
	s.create(namespaces, m{"metadata": m{"name": "team"}})
	s.create(secrets, secret("a", "old-tenant"))
	then := s.create(secrets, secret("b", "old-tenant")).object().GetResourceVersion()
	token := s.get(secrets+"?limit=1").ok(http.StatusOK).at("metadata", "continue").(string)
	everywhere := s.get("/api/v1/secrets?limit=1").ok(http.StatusOK).at("metadata", "continue").(string)
	s.delete(secrets+"/a", nil).ok(http.StatusOK)
	s.delete(secrets+"/b", nil).ok(http.StatusOK)
	s.endNamespace("team")

	past := []string{
		"?resourceVersionMatch=Exact&resourceVersion=" + then,
		"?limit=500&resourceVersion=" + then,
		"?fieldSelector=metadata.name%3Da&resourceVersionMatch=Exact&resourceVersion=" + then,
		"?fieldSelector=metadata.namespace%3Dteam&resourceVersionMatch=Exact&resourceVersion=" + then,
		"?continue=" + token,
		"?continue=" + everywhere,
		"?continue=" + tampered(t, token, "start", "team/\x00"),
		"?continue=" + tampered(t, token, "begun", 1<<62),
	}
	watches := []string{
		secrets + "?watch=1&resourceVersion=" + then,
		secrets + "?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=" + then,
		"/api/v1/watch/namespaces/team/secrets?resourceVersion=" + then,
		"/api/v1/watch/namespaces/team/secrets/a?resourceVersion=" + then,
		"/api/v1/watch/namespaces/team?resourceVersion=" + then,
	}
	expectNothing := func(who *server) {
		t.Helper()
		for _, query := range past {
			a := who.get(secrets + query)
			a.refused(http.StatusGone, metav1.StatusReasonExpired, expired)
			require.NotContains(t, string(a.body), base64.StdEncoding.EncodeToString([]byte("old-tenant")))
		}
		for _, path := range watches {
			who.refusedWatch(path)
		}
	}
	expectNothing(s) // the namespace does not exist

	created := s.create(namespaces, m{"metadata": m{"name": "team"}}).object().GetResourceVersion()
	everything := []m{{"apiGroups": []string{""}, "resources": []string{"*"}, "verbs": []string{"*"}}}
	s.create(rbacPath+"/namespaces/team/roles", m{"metadata": m{"name": "all"}, "rules": everything})
	s.create(rbacPath+"/namespaces/team/rolebindings", roleBinding("all", "Role", "all", subject("User", "tenant")))
	tenant := s.as("tenant")
	tenant.create(secrets, secret("mine", "new"))
	expectNothing(tenant)
	expectNothing(s)
	for _, query := range past { // the answer would list the deleted objects
		tenant.delete(secrets+query, nil).refused(http.StatusGone, metav1.StatusReasonExpired, expired)
	}
	require.Equal(t, []string{"mine"}, tenant.get(secrets).names())

	// The tenant can read the past of its own namespace, and continue with an expired token.
	require.Empty(t, tenant.get(secrets+"?resourceVersionMatch=Exact&resourceVersion="+
		created).ok(http.StatusOK).names())
	tenant.watch(secrets+"?watch=1&resourceVersion="+created).expect("ADDED", "mine")
	s.patch(namespaces+"/team", mergePatch, `{"metadata":{"labels":{"changed":"since"}}}`).ok(http.StatusOK)
	tenant.watch(secrets+"?watch=1&resourceVersion="+created).expect("ADDED", "mine")
	status := tenant.get(secrets+"?continue="+token).refused(http.StatusGone, metav1.StatusReasonExpired, expired)
	require.Equal(t, []string{"mine"}, tenant.get(secrets+"?continue="+status.Continue).ok(http.StatusOK).names())

	// A request for all namespaces is authorized for the past of all.
	const all = "/api/v1/secrets?resourceVersionMatch=Exact&fieldSelector=metadata.namespace%3Dteam&resourceVersion="
	require.Equal(t, []string{"a", "b"}, s.get(all+then).ok(http.StatusOK).names())
	s.get("/api/v1/secrets?continue=" + everywhere).ok(http.StatusOK)
	s.watch("/api/v1/secrets?watch=1&resourceVersion="+then).expect("DELETED", "a")
	tenant.get(all+then).refused(http.StatusForbidden, metav1.StatusReasonForbidden, "at the cluster scope")
}

// Informers can list and watch a namespace that does not exist yet.
func TestPast_OfANewNamespaceIsReadable(t *testing.T) {
	t.Parallel()
	s := start(t)
	const configs = namespaces + "/later/configmaps"
	revision := s.get(configs).ok(http.StatusOK).object().GetResourceVersion()
	s.create(configMaps, configMap("elsewhere"))
	require.Empty(t, s.get(configs+"?resourceVersionMatch=Exact&resourceVersion="+revision).ok(http.StatusOK).names())
	w := s.watch(configs + "?watch=1&resourceVersion=" + revision)
	s.create(namespaces, m{"metadata": m{"name": "later"}})
	s.create(configs, configMap("a"))
	w.expect("ADDED", "a")
	s.refusedWatch(configs + "?watch=1&resourceVersion=" + revision)
	s.get(configs+"?resourceVersionMatch=Exact&resourceVersion="+revision).
		refused(http.StatusGone, metav1.StatusReasonExpired, expired)
}

func TestPast_ExpiresInTheWordsOfKubernetes(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	a.create(configMaps, configMap("a"))
	a.create(configMaps, configMap("b"))
	token := a.get(configMaps+"?limit=1").ok(http.StatusOK).at("metadata", "continue").(string)
	status := a.get(configMaps+"?limit=1&continue="+tampered(t, token, "begun", 1)).
		refused(http.StatusGone, metav1.StatusReasonExpired,
			"The provided continue parameter is too old to display a consistent "+
				"list result. You can start a new list without the continue parameter, or use the continue token in "+
				"this response "+
				"to retrieve the remainder of the results. ")
	require.Equal(t, []string{"b"}, a.get(configMaps+"?limit=1&continue="+status.Continue).ok(http.StatusOK).names())

	old := a.create(configMaps, configMap("c")).object().GetResourceVersion()
	for i := range 2 * logEvents {
		a.patch(configMaps+"/a", mergePatch, fmt.Sprintf(`{"data":{"k":"%d"}}`, i)).ok(http.StatusOK)
	}
	revision, err := a.backend.Revision(t.Context())
	require.NoError(t, err)
	require.NoError(t, a.backend.Compact(t.Context(), revision))
	a.get(configMaps + "/a").ok(http.StatusOK)
	a.get(configMaps+"?resourceVersionMatch=Exact&resourceVersion="+old).
		refused(http.StatusGone, metav1.StatusReasonExpired, "The resourceVersion for the provided list is too old.")
	a.refusedWatch(configMaps + "?watch=1&resourceVersion=" + old)
}

// tampered returns a continue token with another value of one field.
func tampered(t *testing.T, token, field string, value any) string {
	t.Helper()
	text, err := base64.RawURLEncoding.DecodeString(token)
	require.NoError(t, err)
	fields := m{}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&fields))
	require.Contains(t, fields, field)
	fields[field] = value
	text, err = json.Marshal(fields)
	require.NoError(t, err)
	return base64.RawURLEncoding.EncodeToString(text)
}
