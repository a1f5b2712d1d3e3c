package apiserver_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// TestMatrix_EveryRouteAndVerbForEveryone sends a request to every route, anonymously, as a user without rights, and as
// users with Kubernetes' roles. The routes come from the server's router and the kinds from its registry, so that the
// matrix is complete. The expected answer is computed below from the stored roles, by code that is independent of the
// authorizer.
func TestMatrix_EveryRouteAndVerbForEveryone(t *testing.T) {
	t.Parallel()
	key, err := pki.NewKey()
	require.NoError(t, err)
	issuer, err := authn.NewIssuer(authn.IssuerOptions{SigningKey: key})
	require.NoError(t, err)
	a := assemble(t, builtin.Kinds(), apiserver.Options{Authentication: authn.Options{ServiceAccounts: issuer}})
	bind := func(user, role string) {
		a.create(roleBindings, roleBinding(user, "ClusterRole", role, subject("User", user)))
	}
	bind("reader", "view")
	bind("editor", "edit")
	bind("owner", "admin")
	a.create(clusterRoleBindings, clusterRoleBinding("root", "cluster-admin", subject("User", "root")))
	a.create(clusterRoleBindings, clusterRoleBinding("auditor", "view", subject("User", "auditor")))

	rules := func(names ...string) (all []rbacv1.PolicyRule) {
		for _, name := range names {
			role, err := a.typed().RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			all = append(all, role.Rules...)
		}
		return all
	}
	everyone := rules("system:discovery", "system:basic-user", "system:public-info-viewer")
	callers := []*caller{
		{name: authn.Anonymous, everywhere: rules("system:public-info-viewer")},
		{name: "stranger", everywhere: everyone},
		{name: "reader", everywhere: everyone, inDefault: rules("view")},
		{name: "editor", everywhere: everyone, inDefault: rules("edit")},
		{name: "owner", everywhere: everyone, inDefault: rules("admin")},
		{name: "auditor", everywhere: slices.Concat(everyone, rules("view"))},
		{name: "root", everywhere: slices.Concat(everyone, rules("cluster-admin"))},
	}
	requests := everyRequest(t, a.routes)
	t.Logf("%d requests for each of %d callers", len(requests), len(callers))

	for _, c := range callers {
		s := a.as(c.name)
		if c.name == authn.Anonymous {
			config := rest.CopyConfig(a.config)
			config.CertData, config.KeyData = nil, nil
			s = connect(t, config)
		}
		t.Run("as "+c.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var wrong []string
			allowed := 0
			var askers sync.WaitGroup
			for part := range slices.Chunk(requests, len(requests)/8+1) {
				askers.Go(func() {
					for _, q := range part {
						problem, ok := c.ask(s.within(t), q)
						mu.Lock()
						if problem != "" {
							wrong = append(wrong, problem)
						}
						if ok {
							allowed++
						}
						mu.Unlock()
					}
				})
			}
			askers.Wait()
			slices.Sort(wrong)
			require.Empty(t, wrong, "%d of %d answers differ from the roles", len(wrong), len(requests))
			t.Logf("%q may do %d of %d", c.name, allowed, len(requests))
			switch c.name {
			case "root":
				require.Equal(t, len(requests), allowed)
			default:
				require.NotZero(t, allowed)
				require.Less(t, allowed, len(requests))
			}
		})
	}
}

// TestMatrix_RolesGiveWhatTheirNamesPromise checks the decisions of the matrix that must never change, even if the
// rules of the roles do.
func TestMatrix_RolesGiveWhatTheirNamesPromise(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	for _, c := range []struct {
		role, verb, resource string
		cluster, allowed     bool
	}{
		{role: "view", verb: "get", resource: "pods", allowed: true},
		{role: "view", verb: "watch", resource: "deployments.apps", allowed: true},
		{role: "view", verb: "get", resource: "secrets"},
		{role: "view", verb: "list", resource: "secrets"},
		{role: "view", verb: "get", resource: "roles.rbac.authorization.k8s.io"},
		{role: "view", verb: "create", resource: "pods/exec"},
		{role: "view", verb: "get", resource: "pods/exec"},
		{role: "view", verb: "create", resource: "serviceaccounts/token"},
		{role: "view", verb: "create", resource: "pods"},
		{role: "view", verb: "get", resource: "nodes", cluster: true},
		{role: "view", verb: "list", resource: "pods", cluster: true},
		{role: "edit", verb: "get", resource: "secrets", allowed: true},
		{role: "edit", verb: "create", resource: "pods", allowed: true},
		{role: "edit", verb: "create", resource: "rolebindings.rbac.authorization.k8s.io"},
		{role: "edit", verb: "update", resource: "resourcequotas"},
		{role: "edit", verb: "impersonate", resource: "users", cluster: true},
		{role: "admin", verb: "create", resource: "rolebindings.rbac.authorization.k8s.io", allowed: true},
		{role: "admin", verb: "update", resource: "resourcequotas"},
		{role: "admin", verb: "update", resource: "limitranges"},
		{role: "admin", verb: "delete", resource: "namespaces"},
		{role: "admin", verb: "update", resource: "pods/status"},
		{role: "admin", verb: "escalate", resource: "roles.rbac.authorization.k8s.io"},
		{role: "admin", verb: "get", resource: "nodes", cluster: true},
		{role: "admin", verb: "list", resource: "secrets", cluster: true},
		{role: "admin", verb: "create", resource: "clusterrolebindings.rbac.authorization.k8s.io", cluster: true},
		{role: "admin", verb: "create", resource: "tokenreviews.authentication.k8s.io", cluster: true},
	} {
		t.Run(fmt.Sprint(c.role, " ", c.verb, " ", c.resource, " ", c.cluster), func(t *testing.T) {
			a.subtest(t)
			user := "of-" + c.role
			a.do(http.MethodPost, roleBindings, roleBinding(user, "ClusterRole", c.role, subject("User", user)))
			attributes := m{"verb": c.verb, "namespace": "default"}
			if c.cluster {
				delete(attributes, "namespace")
			}
			resource, sub, _ := strings.Cut(c.resource, "/")
			attributes["subresource"] = sub
			attributes["resource"], attributes["group"], _ = strings.Cut(resource, ".")
			review := a.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", m{
				"spec": m{"user": user, "groups": []string{"system:authenticated"}, "resourceAttributes": attributes},
			})
			require.Equal(t, c.allowed, review.at("status", "allowed") == true, "%s", review.body)
		})
	}
}

// asking is one request, and its attributes in RBAC's terms: a path, or a verb on a resource.
type asking struct {
	method, url     string
	verb, path      string
	group, resource string // resource with its subresource
	namespace, name string
	version         string
	streams         bool
}

func (q asking) String() string { return q.method + " " + q.url }

// caller is a user, and its rules in the cluster and in the namespace default.
type caller struct {
	name                  string
	everywhere, inDefault []rbacv1.PolicyRule
}

// may reports whether the rules allow the request.
func (c *caller) may(q asking) bool {
	rules := c.everywhere
	if q.namespace == "default" {
		rules = slices.Concat(rules, c.inDefault)
	}
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
		in := func(list []string, one string) bool { return slices.Contains(list, one) || slices.Contains(list, "*") }
		if !in(r.Verbs, q.verb) {
			return false
		}
		if q.path != "" {
			return slices.ContainsFunc(r.NonResourceURLs, func(u string) bool {
				prefix, star := strings.CutSuffix(u, "*")
				return u == q.path || star && strings.HasPrefix(q.path, prefix)
			})
		}
		return in(r.APIGroups, q.group) && in(r.Resources, q.resource) && len(r.ResourceNames) == 0
	})
}

// ask compares the server's decision with the rules. A request that is allowed may fail afterwards: the objects do not
// exist, and the bodies are empty.
func (c *caller) ask(s *server, q asking) (problem string, allowed bool) {
	var body any
	if q.method == http.MethodPost || q.method == http.MethodPut || q.method == http.MethodPatch {
		body = `{}`
	}
	res := s.send(q.method, q.url, body)
	var text string
	if !q.streams || res.StatusCode != http.StatusOK {
		content, err := io.ReadAll(res.Body)
		if err != nil {
			return fmt.Sprintf("%s: %v", q, err), false
		}
		text = string(content)
	}
	_ = res.Body.Close()
	refusal := ""
	switch {
	case c.may(q):
	case q.path != "":
		refusal = fmt.Sprintf(`403 User \"%s\" cannot %s path \"%s\"`, c.name, q.verb, q.path)
	default:
		refusal = fmt.Sprintf(`403 User \"%s\" cannot %s resource \"%s\" in API group \"%s\"`, c.name, q.verb,
			q.resource, q.group)
	}
	code, words, _ := strings.Cut(refusal, " ")
	refused := res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden &&
		strings.Contains(text, `\" cannot `)
	switch {
	case refusal == "" && refused, refusal != "" &&
		!(fmt.Sprint(res.StatusCode) == code && (strings.Contains(text, words) || q.method == http.MethodHead)):
		return fmt.Sprintf("%s: want %q, have %d %s", q, refusal, res.StatusCode, text), false
	}
	return "", refusal == ""
}

// parameters replaces the parameters of routes that are not resources.
var parameters = strings.NewReplacer("{check}", "ping", "{group}", "apps", "{version}", "v1", "/pprof/*",
	"/pprof/cmdline", "/v3/*", "/v3/api/v1")

// everyRequest returns the requests for the router's routes, for each kind of the registry and each of its
// subresources. Verbs that a kind does not serve are included, since they are authorized, too.
func everyRequest(t *testing.T, routes chi.Routes) []asking {
	t.Helper()
	seen := map[string]bool{}
	var all []asking
	add := func(q asking) {
		if key := q.String(); !seen[key] {
			seen[key] = true
			all = append(all, q)
		}
	}
	kinds := api.NewRegistry(builtin.Kinds()...).Snapshot().Resources
	routesOfKinds := 0
	err := chi.Walk(routes, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		route = strings.ReplaceAll(route, "/*/", "/") // where one router is mounted in another
		if !strings.Contains(route, "{resource}") {
			path := parameters.Replace(route)
			if strings.Contains(route, "{version}") && strings.HasPrefix(route, "/api/") {
				path = "/api/v1"
			}
			verb := strings.ToLower(method)
			if verb == "head" {
				verb = "get"
			}
			add(asking{method: method, url: path, verb: verb, path: path})
			return nil
		}
		routesOfKinds++
		for _, res := range kinds {
			for _, q := range requestsOf(res, method, route) {
				add(q)
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, routesOfKinds, 50)
	for _, res := range kinds { // the requests cover every kind and subresource
		has := func(resource string) bool {
			return slices.ContainsFunc(all, func(q asking) bool {
				return q.group == res.Group && q.version == res.Version && q.resource == resource
			})
		}
		require.True(t, has(res.Plural), res.Plural)
		for _, sub := range res.AllSubresources() {
			require.True(t, has(res.Plural+"/"+sub.Name), "%s/%s", res.Plural, sub.Name)
		}
	}
	return all
}

// requestsOf returns the requests of a route for one kind; none if the route does not apply to it.
func requestsOf(res *api.Resource, method, route string) []asking {
	legacy, namespaced, watch := !strings.Contains(route, "{group}"), strings.Contains(route, "{namespace}"),
		strings.Contains(route, "/watch/")
	below, named := strings.Contains(route, "{name}/"), strings.Contains(route, "{name}")
	across := res.Namespaced && !namespaced // all namespaces at once
	if legacy != (res.Group == "") || namespaced && !res.Namespaced || across && (method != http.MethodGet || named) {
		return nil
	}
	q := asking{method: method, group: res.Group, version: res.Version, resource: res.Plural,
		verb: verbOf(method, named, watch)}
	if namespaced {
		q.namespace = "default"
	}
	name := "no-such"
	if res.Group == "" && res.Kind == "Namespace" {
		name = "default"
		if named { // rights in a namespace include rights to the Namespace
			q.namespace = name
		}
	}
	if named {
		q.name = name
	}
	fill := func(q asking, sub string) asking {
		q.url = strings.NewReplacer("{group}", res.Group, "{version}", res.Version, "{namespace}", "default",
			"{resource}", res.Plural, "{name}", name, "{subresource}", sub, "/proxy/*", "/proxy/a").Replace(route)
		if sub != "" {
			q.resource += "/" + sub
		}
		switch method {
		case http.MethodGet:
			q.streams = watch
		case http.MethodHead, http.MethodOptions:
		default:
			q.url += "?dryRun=All"
		}
		return q
	}
	var all []asking
	switch {
	case strings.Contains(route, "/proxy"):
		if res.Subresource("proxy") != nil {
			all = append(all, fill(q, "proxy"))
		}
	case below:
		for _, sub := range res.AllSubresources() {
			all = append(all, fill(q, sub.Name))
		}
	default:
		q = fill(q, "")
		all = append(all, q)
		if method == http.MethodGet && !named && !watch {
			q.verb, q.streams = "watch", true
			q.url += "?watch=1&resourceVersion=0"
			all = append(all, q)
		}
	}
	return all
}

// verbOf returns the verb of a method.
func verbOf(method string, named, watch bool) string {
	switch {
	case watch:
		return "watch"
	case method == http.MethodPost:
		return "create"
	case method == http.MethodPut:
		return "update"
	case method == http.MethodPatch:
		return "patch"
	case method == http.MethodDelete && !named:
		return "deletecollection"
	case method == http.MethodDelete:
		return "delete"
	case !named:
		return "list"
	}
	return "get"
}
