package apiserver_test

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func role(name string, verbs, resources []string) m {
	return m{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": m{"name": name},
		"rules": []m{{"apiGroups": []string{""}, "resources": resources, "verbs": verbs}},
	}
}

// A namespace's administrator can grant the rights that it has, and no others.
func TestEscalation_UsersCannotGrantRightsTheyLack(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(roleBindings, roleBinding("boss", "ClusterRole", "admin", subject("User", "boss")))
	boss := s.as("boss")
	post := func(path string, body m) *answer {
		t.Helper()
		return boss.do(http.MethodPost, path, body)
	}
	forbidden := func(a *answer, words string) {
		t.Helper()
		a.refused(http.StatusForbidden, metav1.StatusReasonForbidden, words)
	}
	post(roles, role("reader", []string{"get"}, []string{"pods", "secrets"})).ok(http.StatusCreated)
	forbidden(post(roles, role("rooter", []string{"get", "list"}, []string{"nodes"})),
		`roles.rbac.authorization.k8s.io "rooter" is forbidden: user "boss" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:`+"\n"+
			`{APIGroups:[""], Resources:["nodes"], Verbs:["get" "list"]}`)
	forbidden(boss.do(http.MethodPut, roles+"/reader", role("reader", []string{"*"}, []string{"*"})),
		`{APIGroups:[""], Resources:["*"], Verbs:["*"]}`)
	forbidden(boss.do(http.MethodPatch, roles+"/reader",
		m{"rules": []m{{"apiGroups": []string{"*"}, "resources": []string{"*"}, "verbs": []string{"*"}}}},
		"Content-Type", mergePatch), "not currently held")
	boss.do(http.MethodPatch, roles+"/reader", m{"metadata": m{"labels": m{"a": "b"}}}, "Content-Type",
		mergePatch).ok(http.StatusOK)

	post(roleBindings, roleBinding("friend", "ClusterRole", "edit", subject("User", "friend"))).ok(http.StatusCreated)
	forbidden(post(roleBindings, roleBinding("me", "ClusterRole", "cluster-admin", subject("User", "boss"))),
		`rolebindings.rbac.authorization.k8s.io "me" is forbidden: user "boss" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:`)
	post(roleBindings, roleBinding("none", "ClusterRole", "nowhere", subject("User", "boss"))).
		refused(http.StatusNotFound, metav1.StatusReasonNotFound,
			`clusterroles.rbac.authorization.k8s.io "nowhere" not found`)
	forbidden(post(clusterRoleBindings, clusterRoleBinding("me", "cluster-admin", subject("User", "boss"))),
		"cannot create resource")

	// The verbs bind and escalate allow more.
	s.create(roles, m{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": m{"name": "binder"},
		"rules": []m{
			{"apiGroups": []string{"rbac.authorization.k8s.io"}, "resources": []string{"clusterroles"},
				"resourceNames": []string{"cluster-admin"}, "verbs": []string{"bind"}},
			{"apiGroups": []string{"rbac.authorization.k8s.io"}, "resources": []string{"roles"},
				"verbs": []string{"escalate"}},
		}})
	s.create(roleBindings, roleBinding("binder", "Role", "binder", subject("User", "boss")))
	post(roleBindings, roleBinding("me", "ClusterRole", "cluster-admin", subject("User", "boss"))).ok(
		http.StatusCreated)
	post(roles, role("rooter", []string{"get", "list"}, []string{"nodes"})).ok(http.StatusCreated)
}

// The labels of a role select the roles that aggregate its rules: a user who writes labels must hold these rights.
func TestEscalation_EveryUpdateOfARoleIsChecked(t *testing.T) {
	t.Parallel()
	s := start(t)
	jane := s.may("jane", "rbac.authorization.k8s.io", "*", "get", "update", "patch")
	s.bind("view", subject("User", "jane"))
	label := m{"metadata": m{"labels": m{"rbac.authorization.k8s.io/aggregate-to-view": "true"}}}
	s.create(roles, role("rooter", []string{"*"}, []string{"*"}))
	s.create(roleBindings, roleBinding("boss", "ClusterRole", "admin", subject("User", "boss")))
	for _, path := range []string{
		clusterRoles + "/cluster-admin", roles + "/rooter", roleBindings + "/boss", clusterRoleBindings +
			"/cluster-admin",
	} {
		const words = "is attempting to grant RBAC permissions not currently held"
		doc := s.get(path).ok(http.StatusOK).object()
		kind := m{"apiVersion": doc.GetAPIVersion(), "kind": doc.GetKind()}
		maps.Copy(kind, label)
		for _, patch := range []string{mergePatch, strategicPatch} {
			jane.patch(path, patch, label).refused(http.StatusForbidden, metav1.StatusReasonForbidden, words)
		}
		jane.patch(path, jsonPatch, []m{{"op": "add", "path": "/metadata/labels", "value": m{"a": "b"}}}).refused(
			http.StatusForbidden, metav1.StatusReasonForbidden, words)
		jane.patch(path+"?fieldManager=jane", "application/apply-patch+yaml", kind).refused(http.StatusForbidden,
			metav1.StatusReasonForbidden, words)
		doc.SetAnnotations(map[string]string{"rbac.authorization.kubernetes.io/autoupdate": "false"})
		jane.put(path, doc.Object).refused(http.StatusForbidden, metav1.StatusReasonForbidden, words)

		// Writes without a change, and writes of the garbage collector, need no rights.
		require.Equal(t, doc.GetResourceVersion(),
			jane.put(path, s.get(path).object().Object).ok(http.StatusOK).object().GetResourceVersion())
		jane.patch(path, mergePatch, m{"metadata": m{"finalizers": []string{"example.com/a"}}}).ok(http.StatusOK)
		jane.patch(path, mergePatch, m{"metadata": m{"finalizers": nil}}).ok(http.StatusOK)
		s.patch(path, mergePatch, label).ok(http.StatusOK)
	}

	// Jane holds all present rules of view, but not the rules that may be aggregated into it later.
	const words = "must have cluster-admin privileges to use the aggregationRule"
	s.patch(clusterRoles+"/view", mergePatch, m{"rules": []m{}}).ok(http.StatusOK)
	for _, change := range []m{label, {"aggregationRule": nil}} {
		jane.patch(clusterRoles+"/view", mergePatch, change).refused(http.StatusForbidden, metav1.StatusReasonForbidden,
			words)
	}
	s.grant("jane", "escalates", m{"apiGroups": []string{"rbac.authorization.k8s.io"},
		"resources": []string{"clusterroles"}, "resourceNames": []string{"view"}, "verbs": []string{"escalate"}})
	jane.patch(clusterRoles+"/view", mergePatch, label).ok(http.StatusOK)
	jane.patch(clusterRoles+"/edit", mergePatch, label).refused(http.StatusForbidden, metav1.StatusReasonForbidden, "")
}

func TestAccessReviews(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(roleBindings, roleBinding("view", "ClusterRole", "view", subject("Group", "team")))
	jane := s.as("jane", "team")
	review := func(by *server, kind string, spec m) *answer {
		t.Helper()
		path := "/apis/authorization.k8s.io/v1/"
		body := m{"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
		switch kind {
		case "SelfSubjectAccessReview":
			path += "selfsubjectaccessreviews"
		case "SubjectAccessReview":
			path += "subjectaccessreviews"
		case "LocalSubjectAccessReview":
			path += "namespaces/default/localsubjectaccessreviews"
			body["metadata"] = m{"namespace": "default"}
		case "SelfSubjectRulesReview":
			path += "selfsubjectrulesreviews"
		}
		return by.do(http.MethodPost, path, body)
	}
	list := func(namespace string) m { return m{"namespace": namespace, "verb": "list", "resource": "pods"} }
	yes := review(jane, "SelfSubjectAccessReview", m{"resourceAttributes": list("default")}).ok(http.StatusCreated)
	require.Equal(t, true, yes.at("status", "allowed"))
	require.Equal(t, `RBAC: allowed by RoleBinding "view/default" of ClusterRole "view" to Group "team"`,
		yes.at("status", "reason"))
	require.Equal(t, false, review(jane, "SelfSubjectAccessReview", m{"resourceAttributes": list("kube-system")}).ok(
		http.StatusCreated).at("status", "allowed"))
	require.Equal(t, true,
		review(jane, "SelfSubjectAccessReview", m{"nonResourceAttributes": m{"verb": "get", "path": "/api"}}).ok(
			http.StatusCreated).at("status", "allowed"))

	access := m{"user": "x", "groups": []string{"team"}, "resourceAttributes": list("default")}
	require.Equal(t, true, review(s, "SubjectAccessReview", access).ok(http.StatusCreated).at("status", "allowed"))
	require.Equal(t, true, review(s, "LocalSubjectAccessReview", access).ok(http.StatusCreated).at("status", "allowed"))
	review(jane, "SubjectAccessReview", access).refused(http.StatusForbidden, metav1.StatusReasonForbidden,
		"subjectaccessreviews")
	review(s, "SubjectAccessReview", m{"user": "x"}).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
		"exactly one of nonResourceAttributes or resourceAttributes must be specified")
	review(s, "LocalSubjectAccessReview", m{"user": "x", "resourceAttributes": list("other")}).refused(
		http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "must match metadata.namespace")

	rules := review(jane, "SelfSubjectRulesReview", m{"namespace": "default"}).ok(http.StatusCreated)
	require.Equal(t, false, rules.at("status", "incomplete"))
	require.Contains(t, string(rules.body), `"endpointslices"`)
	require.Contains(t, string(rules.body), `"/readyz"`)
	require.Equal(t, true, review(s.as("system:node:a", "system:nodes"), "SelfSubjectRulesReview",
		m{"namespace": "default"}).ok(http.StatusCreated).at("status", "incomplete"))

	names := strings.Split(strings.Repeat("a-name-of-16-chr,", 75_000), ",")
	for _, name := range []string{"a", "b", "c", "d"} {
		long := role(name, []string{"get"}, []string{"pods"})
		long["rules"].([]m)[0]["resourceNames"] = names
		s.create("/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", long)
		s.create(roleBindings, roleBinding(name, "Role", name, subject("User", "jim")))
	}
	rules = review(s.as("jim"), "SelfSubjectRulesReview", m{"namespace": "default"}).ok(http.StatusCreated)
	require.Equal(t, true, rules.at("status", "incomplete"), "there are 5 MB of them")
	require.Less(t, len(rules.body), 5<<20)
}
