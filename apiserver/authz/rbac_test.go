package authz

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

func user(name string, groups ...string) *authn.User {
	return &authn.User{Name: name, Groups: append(groups, authn.GroupAuthenticated)}
}

// asking parses a short description of a request: "get pods/log in web named a", "list apps:deployments", "get
// /healthz".
func asking(u *authn.User, text string) *Attributes {
	words := strings.Fields(text)
	a := &Attributes{User: u, Verb: words[0]}
	if strings.HasPrefix(words[1], "/") {
		a.Path = words[1]
		return a
	}
	resource := words[1]
	if group, rest, ok := strings.Cut(resource, ":"); ok {
		a.Group, resource = group, rest
	}
	a.Resource, a.Subresource, _ = strings.Cut(resource, "/")
	for i := 2; i+1 < len(words); i += 2 {
		switch words[i] {
		case "in":
			a.Namespace = words[i+1]
		case "named":
			a.Name = words[i+1]
		}
	}
	return a
}

func ref(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

func (r *RBAC) may(t testing.TB, u *authn.User, text string) bool {
	t.Helper()
	d, _, err := r.Authorize(t.Context(), asking(u, text))
	require.NoError(t, err)
	return d == Allow
}

func TestRBAC_Rules(t *testing.T) {
	for name, test := range map[string]struct {
		rule     rbacv1.PolicyRule
		yes, not []string
	}{
		"verb, group and resource": {
			on("get list", "core apps", "pods deployments"),
			[]string{"get pods in web named a", "list apps:deployments", "get apps:pods"},
			[]string{"watch pods", "get batch:pods", "get pods/log", "get secrets", "get /pods"},
		},
		"subresource": {
			on("get", "core", "pods/log"),
			[]string{"get pods/log in web named a"},
			[]string{"get pods in web named a", "get pods/exec"},
		},
		"everything": {
			on("*", "*", "*"),
			[]string{"get pods", "frobnicate x.y:z/sub in n named m"},
			[]string{"get /healthz"},
		},
		"one subresource of all": {
			on("get update", "*", "*/scale"),
			[]string{"get apps:deployments/scale", "update x.y:zs/scale"},
			[]string{"get apps:deployments", "get apps:deployments/status"},
		},
		"all resources of a group": {
			on(read, "apps", "*"),
			[]string{"watch apps:deployments", "get apps:deployments/status"},
			[]string{"watch batch:jobs", "create apps:deployments"},
		},
		"a resource of all groups": {
			on("get", "*", "pods"),
			[]string{"get pods", "get metrics.k8s.io:pods"},
			[]string{"get pods/log"},
		},
		"names": {
			on("get update", "core", "configmaps", "a", "b"),
			[]string{"get configmaps in n named a", "update configmaps in n named b"},
			[]string{"get configmaps in n named c", "get configmaps in n", "delete configmaps in n named a"},
		},
		"other verbs": {
			on("impersonate bind", "core", "users"),
			[]string{"impersonate users named x", "bind users"},
			[]string{"get users", "escalate users"},
		},
		"paths": {
			at("get", "/healthz /api/*"),
			[]string{"get /healthz", "get /api/", "get /api/v1"},
			[]string{"get /healthz/ping", "get /api", "get /apis", "post /api/v1", "get pods"},
		},
		"all paths": {at("*", "*"), []string{"get /", "post /x/y"}, []string{"get pods"}},
	} {
		t.Run(name, func(t *testing.T) {
			index := NewRBAC()
			index.PutRole("", "it", []rbacv1.PolicyRule{test.rule})
			index.PutBinding("", "it", ref("ClusterRole", "it"), subjectsOf([]string{"user:jane"}))
			for _, text := range test.yes {
				require.True(t, index.may(t, user("jane"), text), text)
				require.False(t, index.may(t, user("john"), text), text)
			}
			for _, text := range test.not {
				require.False(t, index.may(t, user("jane"), text), text)
			}
		})
	}
}

func TestRBAC_BindsUsersGroupsAndAccountsInTheirNamespace(t *testing.T) {
	index := NewRBAC()
	index.PutRole("web", "reader", []rbacv1.PolicyRule{on("get", "core", "pods")})
	index.PutRole("", "reader", []rbacv1.PolicyRule{on("get", "core", "secrets")})
	index.PutBinding("web", "one", ref("Role", "reader"), subjectsOf([]string{"user:jane", "group:team", "ops/robot"}))
	index.PutBinding("web", "two", ref("ClusterRole", "reader"),
		[]rbacv1.Subject{{Kind: "ServiceAccount", Name: "local"}})
	for _, u := range []*authn.User{user("jane"), user("x", "team"), user("system:serviceaccount:ops:robot")} {
		require.True(t, index.may(t, u, "get pods in web"), u.Name)
		require.False(t, index.may(t, u, "get pods in ops"), u.Name)
		require.False(t, index.may(t, u, "get pods"), u.Name)
		require.False(t, index.may(t, u, "get secrets in web"), u.Name)
	}
	require.False(t, index.may(t, user("team"), "get pods in web"), "a user is not a group")
	require.True(t, index.may(t, user("system:serviceaccount:web:local"), "get secrets in web"))
	require.False(t, index.may(t, user("system:serviceaccount:web:local"), "get secrets in ops"))

	index.PutBinding("web", "one", ref("Role", "reader"), subjectsOf([]string{"user:john"}))
	require.False(t, index.may(t, user("jane"), "get pods in web"))
	require.True(t, index.may(t, user("john"), "get pods in web"))
	index.DeleteRole("web", "reader")
	d, reason, _ := index.Authorize(t.Context(), asking(user("john"), "get pods in web"))
	require.Equal(t, NoOpinion, d)
	require.Equal(t, `RBAC: role.rbac.authorization.k8s.io "reader" not found`, reason)
	index.DeleteBinding("web", "one")
	index.DeleteBinding("web", "two")
	index.DeleteRole("", "reader")
	require.Empty(t, index.bound)
	require.Empty(t, index.roles)
}

// A model that scans all bindings, as kube-apiserver does, must make the same decisions.
func TestRBAC_AgreesWithAScanThroughRandomChanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	index := NewRBAC()
	roles := map[roleKey]*rules{}
	type bound struct {
		ref      roleKey
		subjects []rbacv1.Subject
	}
	bindings := map[roleKey]bound{}
	for range 5000 {
		key := roleKey{pick("", "a", "b"), pick("r1", "r2", "r3")}
		switch random.IntN(4) {
		case 0:
			list := []rbacv1.PolicyRule{on(pick("get", "list", "*"), pick("core", "apps", "*"),
				pick("pods", "pods/log", "*", "*/scale"))}
			roles[key] = arrange(list)
			index.PutRole(key.namespace, key.name, list)
		case 1:
			delete(roles, key)
			index.DeleteRole(key.namespace, key.name)
		case 2:
			r, target := ref("ClusterRole", pick("r1", "r2", "r3")), roleKey{}
			if key.namespace != "" && random.IntN(2) == 0 {
				r.Kind, target.namespace = "Role", key.namespace
			}
			target.name = r.Name
			subjects := subjectsOf([]string{pick("user:u", "user:v", "a/s"), pick("group:g", "group:h", "user:u")})
			bindings[key] = bound{target, subjects}
			index.PutBinding(key.namespace, key.name, r, subjects)
		case 3:
			delete(bindings, key)
			index.DeleteBinding(key.namespace, key.name)
		}
		u := user(pick("u", "v", "system:serviceaccount:a:s"), pick("g", "h", "i"))
		text := pick("get", "list", "watch") + " " + pick("pods", "pods/log", "apps:pods/scale")
		if namespace := pick("", "a", "b"); namespace != "" {
			text += " in " + namespace
		}
		a := asking(u, text)
		q, want := newQuery(a), false
		for key, b := range bindings {
			if roles[b.ref] == nil || !roles[b.ref].allow(&q) || key.namespace != "" && key.namespace != a.Namespace {
				continue
			}
			for i := range b.subjects {
				s, _ := subjectOf(&b.subjects[i], "")
				want = want || !s.group && s.name == u.Name || s.group && u.In(s.name)
			}
		}
		require.Equal(t, want, index.may(t, u, text), "%s: %s", u.Name, text)
	}
}

func TestUnion_AllowsMastersWithoutAskingMembers(t *testing.T) {
	d, _, _ := Union{AlwaysDeny{}}.Authorize(t.Context(), asking(user("root", authn.GroupMasters), "delete nodes"))
	require.Equal(t, Allow, d)
	d, reason, _ := Union{AlwaysDeny{}, NewRBAC()}.Authorize(t.Context(), asking(user("jane"), "get pods"))
	require.Equal(t, NoOpinion, d)
	require.Equal(t, "Everything is forbidden.", reason)
}

// The reason must name the binding and the subject that allowed the user, even after both were replaced.
func TestRBAC_NamesTheAllowingBinding(t *testing.T) {
	t.Parallel()
	index := NewRBAC()
	index.PutRole("", "view", []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}})
	subjects := subjectsOf([]string{"user:other", "user:jane", "user:jane", "group:team"})
	index.PutBinding("", "all", ref("ClusterRole", "view"), subjects)
	index.PutBinding("web", "robots", ref("ClusterRole", "view"),
		[]rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "bot"}})
	reason := func(u *authn.User, text string) string {
		d, reason, err := index.Authorize(t.Context(), asking(u, text))
		require.NoError(t, err)
		require.Equal(t, Allow, d)
		return reason
	}
	for range 2 { // the second time from the cache
		require.Equal(t, `RBAC: allowed by ClusterRoleBinding "all" of ClusterRole "view" to User "jane"`,
			reason(user("jane"), "get pods in web"))
		require.Equal(t, `RBAC: allowed by ClusterRoleBinding "all" of ClusterRole "view" to Group "team"`,
			reason(user("joe", "team"), "get pods in web"))
		require.Equal(t, `RBAC: allowed by RoleBinding "robots/web" of ClusterRole "view" to ServiceAccount "bot/web"`,
			reason(user("system:serviceaccount:web:bot"), "get pods in web"))
	}
	index.DeleteBinding("", "all")
	require.False(t, index.may(t, user("joe", "team"), "get pods in web"))
	index.PutRole("", "read", []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"pods"}}})
	index.PutBinding("", "all", ref("ClusterRole", "read"), subjects[3:])
	require.Equal(t, `RBAC: allowed by ClusterRoleBinding "all" of ClusterRole "read" to Group "team"`,
		reason(user("joe", "team"), "get pods in web"))
}

// A rule of many groups and resources must not be indexed by their combinations.
func TestRBAC_RulesWithLongLists(t *testing.T) {
	t.Parallel()
	index := NewRBAC()
	rule := rbacv1.PolicyRule{Verbs: []string{"get"}}
	for i := range 100_000 {
		rule.APIGroups = append(rule.APIGroups, fmt.Sprintf("g%d", i))
		rule.Resources = append(rule.Resources, fmt.Sprintf("r%d", i), fmt.Sprintf("r%d/log", i))
	}
	few := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}
	index.PutRole("", "long", []rbacv1.PolicyRule{rule, few})
	index.PutBinding("", "long", ref("ClusterRole", "long"), subjectsOf([]string{"user:u"}))
	for text, may := range map[string]bool{
		"get g99999:r99999": true, "get g7:r8/log": true, "get pods": true, "get g7:pods": false,
		"list g7:r8": false, "get r8": false, "get g7:r8/status": false,
	} {
		require.Equal(t, may, index.may(t, user("u"), text), text)
	}
}

// BenchmarkRBAC_PutBinding replaces a binding with as many subjects as fit in a request.
func BenchmarkRBAC_PutBinding(b *testing.B) {
	index := NewRBAC()
	var subjects []rbacv1.Subject
	for i := range 50_000 {
		subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.UserKind, Name: fmt.Sprintf("u%05d", i)})
	}
	for b.Loop() {
		index.PutBinding("", "all", ref("ClusterRole", "view"), subjects)
	}
}

// BenchmarkRBAC decides with the bootstrap policy and 5,000 bindings in 500 namespaces.
func BenchmarkRBAC(b *testing.B) {
	index := NewRBAC()
	for _, r := range Bootstrap().ClusterRoles {
		index.PutRole("", r.Name, r.Rules)
	}
	for _, c := range Bootstrap().ClusterRoleBindings {
		index.PutBinding("", c.Name, c.RoleRef, c.Subjects)
	}
	for i := range 5000 {
		index.PutBinding(fmt.Sprintf("ns-%d", i%500), fmt.Sprintf("b-%d", i), ref("ClusterRole", "edit"),
			subjectsOf([]string{fmt.Sprintf("user:u-%d", i)}))
	}
	for name, text := range map[string]string{"allowed": "create pods in ns-7", "denied": "create pods in ns-8"} {
		b.Run(name, func(b *testing.B) {
			a := asking(user("u-7", "team-a", "team-b"), text)
			b.ReportAllocs()
			for b.Loop() {
				_, _, _ = index.Authorize(b.Context(), a)
			}
		})
	}
}
