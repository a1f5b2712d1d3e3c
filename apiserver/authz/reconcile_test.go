package authz

import (
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/auth/rbac/validation"
)

func find[T metav1.Object](t *testing.T, objects []T, name string) T {
	t.Helper()
	i := slices.IndexFunc(objects, func(o T) bool { return o.GetName() == name })
	require.GreaterOrEqual(t, i, 0, name)
	return objects[i]
}

func TestReconcile_AddsMissingPartsAndKeepsTheRest(t *testing.T) {
	want := find(t, Bootstrap().ClusterRoles, "system:kube-scheduler")
	mended, _ := Reconcile(want.DeepCopy(), want)
	require.Nil(t, mended, "nothing is missing")

	have := want.DeepCopy()
	own := on("get", "mine", "things")
	have.Rules = append(have.Rules[3:], own)
	have.Labels = map[string]string{"mine": "kept"}
	mended, recreate := Reconcile(have, want)
	require.False(t, recreate)
	role := mended.(*rbacv1.ClusterRole)
	require.Empty(t, Covers(role.Rules, want.Rules))
	require.Contains(t, role.Rules, own)
	require.Equal(t, map[string]string{"mine": "kept", "kubernetes.io/bootstrapping": "rbac-defaults"}, role.Labels)

	have.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false"
	mended, _ = Reconcile(have, want)
	require.Nil(t, mended, "it is protected")

	bound := find(t, Bootstrap().ClusterRoleBindings, "system:basic-user")
	other := bound.DeepCopy()
	other.Subjects = subjectsOf([]string{"user:jane"})
	mended, recreate = Reconcile(other, bound)
	require.False(t, recreate)
	require.Equal(t, subjectsOf([]string{"user:jane", "group:system:authenticated"}),
		mended.(*rbacv1.ClusterRoleBinding).Subjects)
	other.RoleRef.Name = "cluster-admin"
	mended, recreate = Reconcile(other, bound)
	require.True(t, recreate)
	require.Equal(t, bound, mended)

	edit := find(t, Bootstrap().ClusterRoles, "edit")
	have = edit.DeepCopy()
	have.Rules, have.AggregationRule = nil, nil
	mended, _ = Reconcile(have, edit)
	require.Equal(t, edit.AggregationRule, mended.(*rbacv1.ClusterRole).AggregationRule)
	require.Empty(t, mended.(*rbacv1.ClusterRole).Rules, "they are the aggregation's to fill in")
}

func TestBootstrap_AggregatesViewIntoEditIntoAdmin(t *testing.T) {
	roles := Bootstrap().ClusterRoles
	view, edit, admin := find(t, roles, "view"), find(t, roles, "edit"), find(t, roles, "admin")
	require.Empty(t, Covers(edit.Rules, view.Rules))
	require.Empty(t, Covers(admin.Rules, edit.Rules))
	require.NotEmpty(t, Covers(edit.Rules, admin.Rules))
	secrets := []rbacv1.PolicyRule{on("get", "core", "secrets")}
	require.NotEmpty(t, Covers(view.Rules, secrets))
	require.Empty(t, Covers(edit.Rules, secrets))
}

func TestCovers(t *testing.T) {
	for name, test := range map[string]struct {
		held, wanted rbacv1.PolicyRule
		missing      string
	}{
		"itself": {on("get list", "core apps", "pods secrets"),
			on("list", "apps", "secrets"), ""},
		"everything": {on("*", "*", "*"), on("frob", "x", "y/z", "n"), ""},
		"not everything": {on("get", "core", "pods"), on("*", "*", "*"),
			`{APIGroups:["*"], Resources:["*"], Verbs:["*"]}`},
		"verbs are joined": {on("get", "core", "pods"), on("get list watch", "core", "pods"),
			`{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}`},
		"a subresource of all": {on("get", "*", "*/scale"), on("get", "apps", "deployments/scale"), ""},
		"a resource is not its subresources": {on("get", "core", "pods"), on("get", "core", "pods/log"),
			`{APIGroups:[""], Resources:["pods/log"], Verbs:["get"]}`},
		"names are less than all": {on("get", "core", "pods", "a"), on("get", "core", "pods"),
			`{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`},
		"names within all": {on("get", "core", "pods"), on("get", "core", "pods", "a"), ""},
		"other names": {on("get", "core", "pods", "a"), on("get", "core", "pods", "a", "b"),
			`{APIGroups:[""], Resources:["pods"], ResourceNames:["b"], Verbs:["get"]}`},
		"paths": {at("get", "/api/*"), at("get", "/api/v1 /api/*"), ""},
		"other paths": {at("get", "/api/*"), at("get", "/apis"),
			`{NonResourceURLs:["/apis"], Verbs:["get"]}`},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := Escalation(t.Context(), "u", []string{"g", "h"}, list{test.held}, list{test.wanted}, nil)
			require.NoError(t, err)
			if test.missing != "" {
				test.missing = "user \"u\" (groups=[\"g\" \"h\"]) is attempting to grant RBAC permissions not " +
					"currently held:\n" + test.missing
			}
			require.Equal(t, test.missing, text)

			_, missing := validation.Covers(list{test.held}, list{test.wanted})
			require.ElementsMatch(t, missing, Covers(list{test.held}, list{test.wanted}), "as Kubernetes")
		})
	}
}

// The bootstrap roles have rules of every form. Each is compared with each, and with Kubernetes' result.
func TestCovers_AgreesWithKubernetes(t *testing.T) {
	roles := Bootstrap().ClusterRoles
	for _, granted := range roles {
		for _, requested := range roles {
			_, missing := validation.Covers(granted.Rules, requested.Rules)
			require.ElementsMatch(t, missing, Covers(granted.Rules, requested.Rules), "%s, %s", granted.Name,
				requested.Name)
		}
	}
}

// BenchmarkCovers compares Covers with Kubernetes' for roles of a size that a client can choose: many rules, and
// one rule with long lists.
func BenchmarkCovers(b *testing.B) {
	var many []rbacv1.PolicyRule
	for i := range 1000 {
		many = append(many, rbacv1.PolicyRule{APIGroups: []string{"g" + strconv.Itoa(i)},
			Resources: []string{"a", "b", "c", "d"}, Verbs: []string{"get", "list", "watch", "create", "update"}})
	}
	wide := rbacv1.PolicyRule{Verbs: []string{"get"}}
	for i := range 300 {
		wide.APIGroups = append(wide.APIGroups, "g"+strconv.Itoa(i))
		wide.Resources = append(wide.Resources, "r"+strconv.Itoa(i))
	}
	for name, rules := range map[string][]rbacv1.PolicyRule{"rules=1000": many, "lists=300": {wide}} {
		b.Run(name+"/ours", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Covers(rules, rules)
			}
		})
		b.Run(name+"/kubernetes", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				validation.Covers(rules, rules)
			}
		})
	}
}
