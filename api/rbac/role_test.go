package rbac_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kindtest"
	"github.com/coxswain-dev/coxswain/api/rbac"
)

func TestRole_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "Role", "rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]", []kindtest.Case{
		{"no verbs", []string{", verbs: [get]", ""}, []string{"Required rules[0].verbs"}},
		{"no group", []string{"apiGroups: [''], ", ""}, []string{"Required rules[0].apiGroups"}},
		{"urls", []string{"{apiGroups: [''], resources: [pods],", "{nonResourceURLs: [/a],"},
			[]string{"Invalid rules[0].nonResourceURLs"}},
	})
}

func TestClusterRoleBinding_ValidateRejects(t *testing.T) {
	t.Parallel()
	const binding = "roleRef: {kind: ClusterRole, name: view}\nsubjects: [{kind: User, name: u}]"
	kindtest.Create(t, "ClusterRoleBinding", binding, []kindtest.Case{
		{"kind", []string{"kind: ClusterRole", "kind: Role"}, []string{"NotSupported roleRef.kind"}},
		{"account without namespace", []string{"kind: User", "kind: ServiceAccount"},
			[]string{"Required subjects[0].namespace"}},
		{"subject", []string{"kind: User", "kind: Machine"}, []string{"NotSupported subjects[0].kind"}},
	})
	kindtest.Update(t, "ClusterRoleBinding", binding,
		[]kindtest.Case{{"role", []string{"name: view", "name: admin"}, []string{"Invalid roleRef"}}})
}

// A kind of the group that grants rights without a Grants function would let users escalate their own rights.
func TestGrants_OfEveryKind(t *testing.T) {
	t.Parallel()
	rules := []rbacv1.PolicyRule{{Verbs: []string{"get"}}}
	ref := rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"}
	aggregated := &rbacv1.ClusterRole{AggregationRule: &rbacv1.AggregationRule{}}
	for kind, c := range map[string]struct {
		obj, old api.Object
		want     api.Grant
	}{
		"Role":        {obj: &rbacv1.Role{Rules: rules}, want: api.Grant{Rules: rules}},
		"ClusterRole": {obj: &rbacv1.ClusterRole{Rules: rules}, want: api.Grant{Rules: rules}},
		"ClusterRole, now aggregated": {obj: aggregated, old: &rbacv1.ClusterRole{},
			want: api.Grant{Aggregated: true}},
		"ClusterRole, no longer aggregated": {obj: &rbacv1.ClusterRole{Rules: rules}, old: aggregated,
			want: api.Grant{Rules: rules, Aggregated: true}},
		"RoleBinding":        {obj: &rbacv1.RoleBinding{RoleRef: ref}, want: api.Grant{Role: &ref}},
		"ClusterRoleBinding": {obj: &rbacv1.ClusterRoleBinding{RoleRef: ref}, want: api.Grant{Role: &ref}},
	} {
		name, _, _ := strings.Cut(kind, ",")
		require.Equal(t, c.want, kindtest.Of(t, name).Grants(c.obj, c.old), kind)
	}
	for _, r := range rbac.Kinds() {
		require.NotNil(t, r.Grants, r.Kind)
	}
}
