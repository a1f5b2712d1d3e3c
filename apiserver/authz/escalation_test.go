package authz_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

func TestEscalationCheck(t *testing.T) {
	t.Parallel()
	rule := func(verb, resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{""}, Resources: []string{resource}}
	}
	reading, writing := []rbacv1.PolicyRule{rule("get", "pods")}, []rbacv1.PolicyRule{rule("update", "pods")}
	rbac := authz.NewRBAC()
	grant := func(user string, rules ...rbacv1.PolicyRule) authz.Grantor {
		rbac.PutRole("", user, rules)
		rbac.PutBinding("", user, rbacv1.RoleRef{Kind: "ClusterRole", Name: user},
			[]rbacv1.Subject{{Kind: "User", Name: user}})
		return authz.Grantor{Namespace: "ns",
			User: &authn.User{Name: user, Groups: []string{authn.GroupAuthenticated}}}
	}
	rbac.PutRole("ns", "reader", reading)
	rbac.PutRole("ns", "writer", writing)
	special := func(verb, resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{rbacv1.GroupName},
			Resources: []string{resource}, ResourceNames: []string{"writer"}}
	}
	reader := grant("r", reading...)
	escalator := grant("e", special("escalate", "roles"))
	binder := grant("b", special("bind", "roles"))
	all := grant("a", authz.Everything...)
	check := &authz.EscalationCheck{Authorizer: rbac, RBAC: rbac, Memory: &memory{}}

	for name, c := range map[string]struct {
		by         authz.Grantor
		rules      []rbacv1.PolicyRule
		aggregated bool
		refused    string
	}{
		"rights that it has":          {by: reader, rules: reading},
		"rights that it lacks":        {by: reader, rules: writing, refused: "is attempting to grant RBAC permissions"},
		"aggregated":                  {by: reader, aggregated: true, refused: "must have cluster-admin privileges"},
		"aggregated, with all rights": {by: all, aggregated: true},
		"with the right to escalate":  {by: escalator, rules: writing, aggregated: true},
		"with the right to bind":      {by: binder, rules: writing, refused: "is attempting to grant"},
	} {
		err := check.Role(t.Context(), c.by, "roles", "writer", c.rules, c.aggregated)
		if c.refused == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.refused, name)
		}
	}
	require.Error(t, check.Role(t.Context(), escalator, "roles", "", writing, false), "a create has no name")

	for name, c := range map[string]struct {
		by      authz.Grantor
		role    string
		refused bool
	}{
		"a role whose rights it has":   {by: reader, role: "reader"},
		"a role whose rights it lacks": {by: reader, role: "writer", refused: true},
		"with the right to bind":       {by: binder, role: "writer"},
		"with it, another role":        {by: binder, role: "reader", refused: true},
		"escalate is not bind":         {by: escalator, role: "writer", refused: true},
	} {
		err := check.Binding(t.Context(), c.by, rbacv1.RoleRef{Kind: "Role", Name: c.role})
		require.Equal(t, c.refused, err != nil, "%s: %v", name, err)
	}
	err := check.Binding(t.Context(), reader, rbacv1.RoleRef{Kind: "Role", Name: "none"})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

// A rule of two megabytes may have ten billion parts.
func TestEscalation_OfARuleWithLongLists(t *testing.T) {
	t.Parallel()
	huge := rbacv1.PolicyRule{Verbs: []string{"get"}}
	for i := range 100_000 {
		huge.APIGroups = append(huge.APIGroups, fmt.Sprintf("g%d", i))
		huge.Resources = append(huge.Resources, fmt.Sprintf("r%d", i))
	}
	list := []rbacv1.PolicyRule{huge}
	text, err := authz.Escalation(t.Context(), "u", nil, nil, list, nil)
	require.NoError(t, err)
	require.Equal(t, 1001, strings.Count(text, "\n"), "1,000 of them and ...")
	require.True(t, strings.HasSuffix(text, "\n..."))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = authz.Escalation(ctx, "u", nil, list, list, nil)
	require.ErrorIs(t, err, context.Canceled)
}
