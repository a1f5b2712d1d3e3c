package clusterroleaggregation_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestClusterRoleAggregation_FollowsTheLabels(t *testing.T) {
	t.Parallel()
	c := controllertest.NewSigning(t, "clusterrole-aggregation-controller")
	roles := c.Client.RbacV1().ClusterRoles()
	rule := func(resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"},
			Resources: []string{resource}}
	}
	part := func(name, resource string, labels map[string]string) {
		_, err := roles.Create(c.Context(), &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Rules: []rbacv1.PolicyRule{rule(resource)},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, err := roles.Create(c.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "sum"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
			{MatchLabels: map[string]string{"to": "sum"}}, {MatchLabels: map[string]string{"also": "sum"}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	part("b", "bees", map[string]string{"to": "sum"})
	part("a", "ants", map[string]string{"to": "sum", "also": "sum"})
	part("other", "wasps", nil)
	reaches := func(name string, want ...rbacv1.PolicyRule) {
		t.Helper()
		c.Reaches(name, func() bool {
			role, err := roles.Get(c.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			return len(role.Rules) == len(want) && (len(want) == 0 || equality.Semantic.DeepEqual(want, role.Rules))
		})
	}
	reaches("sum", rule("ants"), rule("bees"))
	_, err = roles.Patch(c.Context(), "b", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"to":null}}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	reaches("sum", rule("ants"))
	require.NoError(t, roles.Delete(c.Context(), "a", metav1.DeleteOptions{}))
	reaches("sum")

	// A role that is aggregated to view is also part of edit and admin.
	part("crd-view", "widgets", map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"})
	for _, name := range []string{"view", "edit", "admin"} {
		c.Reaches(name, func() bool {
			role, err := roles.Get(c.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			for _, r := range role.Rules {
				if equality.Semantic.DeepEqual(r, rule("widgets")) {
					return true
				}
			}
			return false
		})
	}
	role, err := roles.Get(c.Context(), "sum", metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, role.Rules)
}
