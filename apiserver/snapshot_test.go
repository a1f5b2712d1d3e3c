package apiserver_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/snapshots"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

func TestSnapshots_AreSavedAndLoadedByRequests(t *testing.T) {
	t.Parallel()
	started := servertest.Start(t, apiserver.Options{Snapshots: snapshots.New(snapshots.Options{Version: "v1"})})
	s := connect(t, started.Config)
	const one = "/debug/snapshots/one"
	s.create(configMaps, `{"metadata":{"name":"kept"},"data":{"k":"before"}}`)
	var saved, loaded snapshots.Info
	require.NoError(t, json.Unmarshal(s.put(one, nil).ok(http.StatusOK).body, &saved))
	require.Equal(t, "one", saved.Name)
	s.patch(configMaps+"/kept", mergePatch, `{"data":{"k":"after"}}`).ok(http.StatusOK)
	s.create(configMaps, `{"metadata":{"name":"new"}}`)
	require.NoError(t, json.Unmarshal(s.do(http.MethodPost, one+"/reset", nil).ok(http.StatusOK).body, &loaded))
	require.Greater(t, loaded.Revision, saved.Revision)
	require.Contains(t, string(s.get(configMaps+"/kept").ok(http.StatusOK).body), `"k":"before"`)
	s.gone(configMaps + "/new")
	s.do(http.MethodPost, one+"/load", nil).ok(http.StatusOK)
	require.Contains(t, string(s.get("/debug/snapshots").ok(http.StatusOK).body), `"name": "one"`)
	s.put("/debug/snapshots/..", nil).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "not a name")
	s.do(http.MethodPost, one, nil).refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "")
	s.delete(one, nil).ok(http.StatusOK)
	s.do(http.MethodPost, one+"/load", nil).refused(http.StatusNotFound, metav1.StatusReasonNotFound,
		"there is no snapshot one")
	connect(t, servertest.Start(t, apiserver.Options{}).Config).put(one, nil).refused(http.StatusNotFound,
		metav1.StatusReasonNotFound, "")
}

// TestSnapshots_TakeEveryRight: a right to the path does not suffice, because a snapshot replaces roles, too.
func TestSnapshots_TakeEveryRight(t *testing.T) {
	t.Parallel()
	started := servertest.Start(t, apiserver.Options{Snapshots: snapshots.New(snapshots.Options{Version: "v1"})})
	s := connect(t, started.Config)
	client := s.typed()
	grant := func(name string, rules ...rbacv1.PolicyRule) {
		_, err := client.RbacV1().ClusterRoles().Create(t.Context(),
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	paths := rbacv1.PolicyRule{NonResourceURLs: []string{"*"}, Verbs: []string{"*"}}
	objects := rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}
	grant("paths", paths, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"*"}, Verbs: []string{"*"}})
	grant("everything", paths, objects)
	for _, request := range []struct{ method, path string }{
		{http.MethodPut, "/debug/snapshots/one"}, {http.MethodPost, "/debug/snapshots/one/load"},
		{http.MethodPost, "/debug/snapshots/one/reset"}, {http.MethodDelete, "/debug/snapshots/one"},
	} {
		for _, user := range []string{"nobody", "paths"} {
			s.do(request.method, request.path, nil, "Impersonate-User", user).refused(http.StatusForbidden,
				metav1.StatusReasonForbidden, "")
		}
		s.do(request.method, request.path, nil, "Impersonate-User", "everything").ok(http.StatusOK)
	}
	s.get("/debug/snapshots", "Impersonate-User", "nobody").refused(http.StatusForbidden,
		metav1.StatusReasonForbidden, "")
}
