package apiserver_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// The rights that Kubernetes documents for its roles. They are listed again, so that TestAttackMatrix does not depend
// on the server's own tables. A line is "VERBS GROUP RESOURCES" with commas; "core" is the group without a name.
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/
const (
	readVerbs  = "get,list,watch"
	writeVerbs = "create,delete,deletecollection,patch,update"
)

var (
	rightsOfAll = []string{"create authorization.k8s.io selfsubjectaccessreviews,selfsubjectrulesreviews",
		"create authentication.k8s.io selfsubjectreviews"}
	rightsOfAccounts = []string{readVerbs + " certificates.k8s.io clustertrustbundles"}
	rightsOfViewers  = []string{
		readVerbs + " core configmaps,endpoints,persistentvolumeclaims,persistentvolumeclaims/status,pods,pods/log," +
			"pods/status,replicationcontrollers,replicationcontrollers/scale,replicationcontrollers/status," +
			"serviceaccounts,services,services/status,bindings,events,limitranges,namespaces,namespaces/status," +
			"resourcequotas,resourcequotas/status",
		readVerbs + " discovery.k8s.io endpointslices",
		readVerbs + " apps controllerrevisions,daemonsets,daemonsets/status,deployments,deployments/scale," +
			"deployments/status,replicasets,replicasets/scale,replicasets/status,statefulsets,statefulsets/scale," +
			"statefulsets/status",
		readVerbs + " autoscaling horizontalpodautoscalers,horizontalpodautoscalers/status",
		readVerbs + " batch cronjobs,cronjobs/status,jobs,jobs/status",
		readVerbs + " policy poddisruptionbudgets,poddisruptionbudgets/status",
		readVerbs + " networking.k8s.io ingresses,ingresses/status,networkpolicies",
		readVerbs + " resource.k8s.io resourceclaims,resourceclaims/status,resourceclaimtemplates",
	}
	rightsOfEditors = append([]string{
		readVerbs + " core pods/attach,pods/exec,pods/portforward,pods/proxy,secrets,services/proxy",
		writeVerbs + " core configmaps,events,persistentvolumeclaims,pods,pods/attach,pods/exec,pods/portforward," +
			"pods/proxy,replicationcontrollers,replicationcontrollers/scale,secrets,serviceaccounts,services," +
			"services/proxy",
		"create core pods/eviction,serviceaccounts/token",
		writeVerbs + " apps daemonsets,deployments,deployments/rollback,deployments/scale,replicasets," +
			"replicasets/scale,statefulsets,statefulsets/scale",
		writeVerbs + " autoscaling horizontalpodautoscalers",
		writeVerbs + " batch cronjobs,jobs",
		writeVerbs + " policy poddisruptionbudgets",
		writeVerbs + " networking.k8s.io ingresses,networkpolicies",
		writeVerbs + "," + readVerbs + " coordination.k8s.io leases",
		writeVerbs + " resource.k8s.io resourceclaims,resourceclaimtemplates",
	}, rightsOfViewers...)
	rightsOfOwners = append([]string{
		"create authorization.k8s.io localsubjectaccessreviews",
		writeVerbs + "," + readVerbs + " rbac.authorization.k8s.io roles,rolebindings",
	}, rightsOfEditors...)
	// rightsOfNodes do not depend on names; admission restricts the writes further.
	rightsOfNodes = []string{
		"create authentication.k8s.io tokenreviews",
		"create authorization.k8s.io localsubjectaccessreviews,subjectaccessreviews",
		readVerbs + " core services", "get core endpoints",
		"create,patch,update core nodes", "patch,update core nodes/status",
		"create,patch,update core events",
		"create,delete core pods", "patch,update core pods/status", "create core pods/eviction",
		"create," + readVerbs + " certificates.k8s.io certificatesigningrequests,podcertificaterequests",
		readVerbs + " certificates.k8s.io clustertrustbundles",
		readVerbs + " storage.k8s.io csidrivers", "create storage.k8s.io csinodes",
		readVerbs + " node.k8s.io runtimeclasses",
		"create resource.k8s.io resourceslices",
	}
	// rightsOfNodesTo are the rights to objects that a pod of the node references.
	rightsOfNodesTo = []string{readVerbs + " core secrets,configmaps,pods", "get core serviceaccounts",
		"create core serviceaccounts/token"}

	publicPaths     = []string{"/livez", "/readyz", "/healthz", "/version", "/version/"}
	discoveryPaths  = []string{"/openapi", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*"}
	issuerDiscovery = []string{"/.well-known/openid-configuration", "/openid/v1/jwks"}
)

// rulesOf parses lines of rights.
func rulesOf(lines ...[]string) (all []rbacv1.PolicyRule) {
	for _, line := range slices.Concat(lines...) {
		parts := strings.Fields(line)
		group := strings.ReplaceAll(parts[1], "core", "")
		all = append(all, rbacv1.PolicyRule{Verbs: strings.Split(parts[0], ","), APIGroups: []string{group},
			Resources: strings.Split(parts[2], ",")})
	}
	return all
}

func reading(paths ...[]string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: slices.Concat(paths...)}
}

// attacker is an identity and its rights by the tables above.
type attacker struct {
	caller
	server *server
	// toNamed are rights to the object that the requests name, in the namespace default.
	toNamed []rbacv1.PolicyRule
	// readsSecrets reports whether a request may return the contents of Secrets.
	readsSecrets func(asking) bool
	// allowed and denied count the answers, read the answers with the contents of a Secret.
	allowed, denied, read int
}

// TestAttackMatrix_EveryIdentityHasExactlyItsRights sends a request to every route, in the caller's own namespace and
// in another, as every kind of identity, and looks for the contents of Secrets, tokens and hidden names in all output
// of the server.
func TestAttackMatrix_EveryIdentityHasExactlyItsRights(t *testing.T) {
	t.Parallel()
	const (
		content, hidden = "mark-of-a-secret-5e1f", "hidden-name-7c1d"
		bootstrap       = "abcdef.0123456789abcdef"
	)
	auditor, auditLog := openAudit(t, "rules: [{level: Metadata}]\n")
	key, err := pki.NewKey()
	require.NoError(t, err)
	issuer, err := authn.NewIssuer(authn.IssuerOptions{SigningKey: key})
	require.NoError(t, err)
	a := assemble(t, builtin.Kinds(), apiserver.Options{Audit: auditor,
		Authentication: authn.Options{ServiceAccounts: issuer, BootstrapTokens: true}})
	a.create(namespaces, m{"metadata": m{"name": "vault"}})
	a.create(nodes, m{"metadata": m{"name": "node-a"}})
	for _, namespace := range []string{"default", "vault"} {
		in := func(path string) string { return strings.Replace(path, "/default/", "/"+namespace+"/", 1) }
		a.create(in(accounts), m{"metadata": m{"name": "default"}})
		for _, name := range []string{"named", hidden} {
			a.create(in(accounts), m{"metadata": m{"name": name}})
			a.create(in(secrets), m{"metadata": m{"name": name}, "stringData": m{"password": content}})
			a.create(in(configMaps), m{"metadata": m{"name": name}})
			on := "node-a"
			if namespace == "vault" {
				on = "node-b"
			}
			a.create(in(pods), podOf(name, m{"nodeName": on, "serviceAccountName": name, "volumes": []m{
				{"name": "s", "secret": m{"secretName": name}}, {"name": "c", "configMap": m{"name": name}}}}))
		}
	}
	a.create("/api/v1/namespaces/kube-system/secrets", m{"metadata": m{"name": "bootstrap-token-abcdef"},
		"type": "bootstrap.kubernetes.io/token", "stringData": m{"token-id": "abcdef",
			"token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}})
	token := a.token("named", m{}).ok(http.StatusCreated).token()

	attackers := attackersOf(t, a, token, bootstrap)
	marks := [][]byte{[]byte(content), []byte(base64.StdEncoding.EncodeToString([]byte(content))), []byte(token),
		[]byte(bootstrap), []byte("0123456789abcdef")}
	requests := attackRequests(t, a)
	t.Logf("%d requests for each of %d identities", len(requests), len(attackers))
	var asking sync.WaitGroup
	problems := make([][]string, len(attackers))
	for i, c := range attackers {
		asking.Go(func() {
			for _, q := range requests {
				if problem := c.attack(t, q, marks, []byte(hidden)); problem != "" {
					problems[i] = append(problems[i], problem)
				}
			}
		})
	}
	asking.Wait()
	for i, c := range attackers {
		require.Empty(t, problems[i], "%s: %d of %d answers", c.name, len(problems[i]), len(requests))
		t.Logf("%s: %d allowed, %d denied, %d with secrets", c.name, c.allowed, c.denied, c.read)
		require.NotZero(t, c.allowed, c.name)
		require.NotZero(t, c.denied, c.name)
		require.Equal(t, slices.Contains([]string{"editor", "owner", "system:node:node-a"}, c.name), c.read > 0, c.name)
	}
	events := a.get("/api/v1/events").ok(http.StatusOK).body
	audited, err := os.ReadFile(auditLog)
	require.NoError(t, err)
	for _, c := range attackers {
		require.Contains(t, string(audited), fmt.Sprintf(`"username":%q`, c.name))
	}
	for name, out := range map[string][]byte{"log": []byte(a.log.String()), "audit log": audited, "Events": events,
		"metrics": a.get("/metrics").ok(http.StatusOK).body} {
		for _, mark := range marks {
			require.NotContains(t, string(out), string(mark), "%s", name)
		}
	}
}

func attackersOf(t *testing.T, a *assembly, token, bootstrap string) []*attacker {
	t.Helper()
	bind := func(user, role string) {
		a.create(roleBindings, roleBinding(user, "ClusterRole", role, subject("User", user)))
	}
	bind("viewer", "view")
	bind("editor", "edit")
	bind("owner", "admin")
	withToken := func(token string) *server {
		config := rest.CopyConfig(a.config)
		config.CertData, config.KeyData = nil, nil
		s := connect(t, config)
		s.bearer = token
		return s
	}
	all := append(rulesOf(rightsOfAll), reading(publicPaths, discoveryPaths))
	never := func(asking) bool { return false }
	inDefault := func(q asking) bool {
		return q.namespace == "default" && q.group == "" && q.resource == "secrets"
	}
	user := func(name string, s *server, rights []rbacv1.PolicyRule, readsSecrets func(asking) bool) *attacker {
		return &attacker{caller: caller{name: name, everywhere: all, inDefault: rights}, server: s,
			readsSecrets: readsSecrets}
	}
	anonymous := user(authn.Anonymous, withToken(""), nil, never)
	anonymous.everywhere = []rbacv1.PolicyRule{reading(publicPaths)}
	pod := user("system:serviceaccount:default:named", withToken(token), nil, never)
	pod.everywhere = append(rulesOf(rightsOfAll, rightsOfAccounts),
		reading(publicPaths, discoveryPaths, issuerDiscovery))
	node := user("system:node:node-a", a.as("system:node:node-a", "system:nodes"), nil, func(q asking) bool {
		return inDefault(q) && q.name == "named"
	})
	node.everywhere = append(rulesOf(rightsOfAll, rightsOfNodes), reading(publicPaths, discoveryPaths))
	node.toNamed = rulesOf(rightsOfNodesTo)
	return []*attacker{
		anonymous, user("stranger", a.as("stranger"), nil, never),
		user("viewer", a.as("viewer"), rulesOf(rightsOfViewers), never),
		user("editor", a.as("editor"), rulesOf(rightsOfEditors), inDefault),
		user("owner", a.as("owner"), rulesOf(rightsOfOwners), inDefault),
		pod, node, user("system:bootstrap:abcdef", withToken(bootstrap), nil, never),
	}
}

// attackRequests returns the requests of the matrix, for existing objects, in the namespace default and in another.
func attackRequests(t *testing.T, a *assembly) []asking {
	var all []asking
	for _, q := range everyRequest(t, a.routes) {
		if q.name == "no-such" {
			q.name, q.url = "named", strings.Replace(q.url, "/no-such", "/named", 1)
		}
		all = append(all, q)
		if q.namespace == "default" {
			q.namespace, q.url = "vault", strings.Replace(q.url, "/default", "/vault", 1)
			if q.name == "default" {
				q.name = "vault"
			}
			all = append(all, q)
		}
	}
	return all
}

// attack sends a request, compares the decision with the tables, and checks that the answer does not disclose secrets.
func (c *attacker) attack(t *testing.T, q asking, marks [][]byte, hidden []byte) string {
	var body any
	if q.method == http.MethodPost || q.method == http.MethodPut || q.method == http.MethodPatch {
		body = `{}`
	}
	res := c.server.within(t).send(q.method, q.url, body)
	var answer []byte
	if !q.streams || res.StatusCode != http.StatusOK {
		var err error
		if answer, err = io.ReadAll(res.Body); err != nil {
			return fmt.Sprintf("%s: %v", q, err)
		}
	}
	_ = res.Body.Close()
	may := c.may(q) || q.namespace == "default" && q.name == "named" &&
		(&caller{everywhere: c.toNamed}).may(q)
	denied := res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden &&
		(q.method == http.MethodHead || bytes.Contains(answer, []byte(`User \"`+c.name+`\" cannot `)))
	if may == denied || !may && res.StatusCode < 400 {
		return fmt.Sprintf("%s: may it? %v; %d %.300s", q, may, res.StatusCode, answer)
	}
	if may {
		c.allowed++
	} else {
		c.denied++
	}
	var headers bytes.Buffer
	_ = res.Header.Write(&headers)
	for _, mark := range marks {
		if bytes.Contains(headers.Bytes(), mark) || bytes.Contains(answer, mark) && !c.readsSecrets(q) {
			return fmt.Sprintf("%s: the answer contains %q", q, mark)
		}
		if bytes.Contains(answer, mark) {
			c.read++
		}
	}
	if !may && (bytes.Contains(answer, hidden) || bytes.Contains(headers.Bytes(), hidden)) {
		return fmt.Sprintf("%s: the answer names what the caller may not see", q)
	}
	return ""
}
