package apiserver_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// opinions is an authorization webhook, over TLS.
type opinions struct {
	*httptest.Server
	mu     sync.Mutex
	answer func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus
	code   int // the answer is this code if it is not 0
	about  []authorizationv1.SubjectAccessReviewSpec
}

// asked returns the options of authorizers with this webhook. Answers are cached for the default times.
func (o *opinions) asked(t *testing.T, c clock.PassiveClock, authorities []byte, modes ...string) authz.Options {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: o.URL, CertificateAuthorityData: authorities}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "ours"}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "c"
	file := filepath.Join(t.TempDir(), "webhook")
	require.NoError(t, clientcmd.WriteToFile(*config, file))
	return authz.Options{Clock: c, Configuration: authz.Modes(modes, &authz.WebhookConfiguration{
		AuthorizedTTL:   metav1.Duration{Duration: authz.DefaultAuthorizedTTL},
		UnauthorizedTTL: metav1.Duration{Duration: authz.DefaultUnauthorizedTTL},
		Timeout:         metav1.Duration{Duration: 30 * time.Second},
		ConnectionInfo:  authz.WebhookConnectionInfo{KubeConfigFile: &file},
	})}
}

func startOpinions(t *testing.T) *opinions {
	o := &opinions{}
	o.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		defer o.mu.Unlock()
		var review authorizationv1.SubjectAccessReview
		if r.Header.Get("Authorization") != "Bearer ours" || json.NewDecoder(r.Body).Decode(&review) != nil ||
			review.Kind != "SubjectAccessReview" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		o.about = append(o.about, review.Spec)
		if o.code != 0 {
			w.WriteHeader(o.code)
			return
		}
		review.Status = o.answer(review.Spec)
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *opinions) says(s authorizationv1.SubjectAccessReviewStatus) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.code = 0
	o.answer = func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus { return s }
}

func (o *opinions) fails(code int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.code = code
}

// questions returns how many reviews of a user the webhook has received.
func (o *opinions) questions(user string) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, q := range o.about {
		if q.User == user {
			n++
		}
	}
	return n
}

func TestAuthorizationWebhook_DecidesCachesAndFailsClosed(t *testing.T) {
	t.Parallel()
	o := startOpinions(t)
	clock := clocktesting.NewFakePassiveClock(time.Now())
	a := assemble(t, builtin.Kinds(), apiserver.Options{Authorization: o.asked(t, clock,
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.Certificate().Raw}), "Webhook", "RBAC")})
	refused := func(s *server, words string) {
		t.Helper()
		s.get(pods).refused(http.StatusForbidden, metav1.StatusReasonForbidden, words)
	}

	// Allowed: cached for five minutes, for the same request only.
	jane := a.as("jane", "team")
	o.says(authorizationv1.SubjectAccessReviewStatus{Allowed: true})
	jane.get(pods).ok(http.StatusOK)
	o.mu.Lock()
	q := o.about[len(o.about)-1]
	o.mu.Unlock()
	require.Equal(t, "jane", q.User)
	require.Contains(t, q.Groups, "team")
	require.Equal(t, &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "list", Version: "v1",
		Resource: "pods"}, q.ResourceAttributes)
	o.says(authorizationv1.SubjectAccessReviewStatus{})
	before := o.questions("jane")
	jane.get(pods).ok(http.StatusOK)
	require.Equal(t, before, o.questions("jane"))
	jane.get(configMaps).refused(http.StatusForbidden, metav1.StatusReasonForbidden, "configmaps")
	clock.SetTime(clock.Now().Add(5*time.Minute + time.Second))
	refused(jane, "pods")

	// No opinion: the next authorizer decides, and the answer is cached for half a minute.
	o.says(authorizationv1.SubjectAccessReviewStatus{Allowed: true})
	refused(jane, "pods")
	clock.SetTime(clock.Now().Add(31 * time.Second))
	jane.get(pods).ok(http.StatusOK)
	o.says(authorizationv1.SubjectAccessReviewStatus{Reason: "nobody knows her"})
	bob := a.as("bob")
	refused(bob, "nobody knows her")
	a.create(roleBindings, roleBinding("bob", "ClusterRole", "view", subject("User", "bob")))
	bob.get(pods).ok(http.StatusOK)

	// Denied: no other authorizer is called.
	clock.SetTime(clock.Now().Add(time.Hour))
	o.says(authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "not today"})
	refused(bob, "not today")
	o.says(authorizationv1.SubjectAccessReviewStatus{Denied: true, Allowed: true})
	refused(a.as("eve"), "eve")

	// A failed call allows no request, and the other authorizers decide. A 5xx is retried.
	o.fails(http.StatusInternalServerError)
	carl := a.as("carl")
	refused(carl, "carl")
	require.GreaterOrEqual(t, o.questions("carl"), 3)
	o.fails(http.StatusBadRequest)
	refused(a.as("dora"), "dora")
	a.create(roleBindings, roleBinding("carl", "ClusterRole", "view", subject("User", "carl")))
	carl.get(pods).ok(http.StatusOK)
	require.Contains(t, a.log.String(), "failed to authorize a request")
	// A failure is not cached.
	o.says(authorizationv1.SubjectAccessReviewStatus{Allowed: true})
	a.as("dora").get(pods).ok(http.StatusOK)

	// Paths that are not resources, and members of system:masters.
	path := a.as("path")
	path.get("/metrics").ok(http.StatusOK)
	o.mu.Lock()
	require.Equal(t, &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
		o.about[len(o.about)-1].NonResourceAttributes)
	o.mu.Unlock()
	require.Zero(t, o.questions("admin"))
}

// TestAuthorizationWebhook_ClientsTimeoutDoesNotBypassIt configures a webhook that denies requests which RBAC would
// allow, with failurePolicy NoOpinion. A client whose timeout is shorter than the call must not bypass the webhook.
func TestAuthorizationWebhook_ClientsTimeoutDoesNotBypassIt(t *testing.T) {
	t.Parallel()
	o := startOpinions(t)
	o.says(authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "never"})
	a := assemble(t, builtin.Kinds(), apiserver.Options{Authorization: o.asked(t,
		clocktesting.NewFakePassiveClock(time.Now()),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.Certificate().Raw}), "Webhook", "RBAC")})
	a.create(secrets, m{"metadata": m{"name": "x"}, "stringData": m{"k": "hidden"}})
	for i, c := range []struct{ method, path string }{
		{http.MethodGet, secrets + "/x?timeout=1ns&resourceVersion=0"}, {http.MethodGet, secrets + "/x?timeout=1ns"},
		{http.MethodGet, secrets + "?timeout=1ns&resourceVersion=0"}, {http.MethodGet, "/metrics?timeout=1ns"},
		{http.MethodGet, "/openapi/v2?timeout=1ns"}, {http.MethodGet, "/apis/apps/v1?timeout=1ns"},
		{http.MethodPost, secrets + "?timeout=1ns&dryRun=All"}, {http.MethodDelete, secrets + "/x?timeout=1ns"},
	} {
		name := fmt.Sprint("jane-", i)
		a.create(clusterRoleBindings, clusterRoleBinding(name, "cluster-admin", subject("User", name)))
		answer := a.as(name).do(c.method, c.path, nil)
		require.Equal(t, http.StatusGatewayTimeout, answer.code, "%s %s: %s", c.method, c.path, answer.body)
		require.NotContains(t, string(answer.body), "hidden")
		require.Equal(t, 1, o.questions(name), "the webhook was called in spite of the timeout")
	}
	a.get(secrets + "/x").ok(http.StatusOK)
}

func TestRequest_ThatHasEndedDoesNotRead(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(secrets, m{"metadata": m{"name": "x"}})
	for _, path := range []string{secrets + "/x", secrets, secrets + "/x?resourceVersion=0", "/api", "/version", "/metrics",
		"/openapi/v3", "/readyz"} {
		answer := s.get(path + map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")] + "timeout=1ns")
		require.Equal(t, http.StatusGatewayTimeout, answer.code, "%s: %s", path, answer.body)
	}
}

func TestAuthorizationWebhook_UntrustedServerIsNotCalled(t *testing.T) {
	t.Parallel()
	o := startOpinions(t)
	o.says(authorizationv1.SubjectAccessReviewStatus{Allowed: true})
	a := assemble(t, builtin.Kinds(), apiserver.Options{
		Authorization: o.asked(t, clocktesting.NewFakePassiveClock(time.Now()), nil, "Webhook")})
	a.as("jane").get(pods).refused(http.StatusForbidden, metav1.StatusReasonForbidden, "jane")
	require.Zero(t, o.questions("jane"))
}

func TestImpersonate_EachPartRequiresARight(t *testing.T) {
	t.Parallel()
	s := start(t)
	jane := s.as("jane")
	forbidden := func(words string, headers ...string) {
		t.Helper()
		jane.get(pods, headers...).refused(http.StatusForbidden, metav1.StatusReasonForbidden, words)
	}
	forbidden(`users "bob" is forbidden: User "jane" cannot impersonate resource "users" in API group "" at the cluster scope`, "Impersonate-User", "bob")
	forbidden(`serviceaccounts "robot" is forbidden`, "Impersonate-User", "system:serviceaccount:ns:robot")

	s.create(clusterRoles, m{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
		"metadata": m{"name": "as-bob"}, "rules": []m{
			{"apiGroups": []string{""}, "resources": []string{"users"}, "resourceNames": []string{"bob"},
				"verbs": []string{"impersonate"}},
			{"apiGroups": []string{""}, "resources": []string{"groups"}, "resourceNames": []string{"devs"},
				"verbs": []string{"impersonate"}},
		}})
	s.create(clusterRoleBindings, clusterRoleBinding("as-bob", "as-bob", subject("User", "jane")))
	s.create(roleBindings, roleBinding("bob", "ClusterRole", "view", subject("User", "bob")))
	jane.get(pods, "Impersonate-User", "bob").ok(http.StatusOK)
	jane.get(pods, "Impersonate-User", "bob", "Impersonate-Group", "devs").ok(http.StatusOK)
	forbidden(`users "kubernetes-admin" is forbidden`, "Impersonate-User", "kubernetes-admin")
	forbidden(`groups "system:masters" is forbidden`, "Impersonate-User", "bob", "Impersonate-Group", "system:masters")
	forbidden(`uids`, "Impersonate-User", "bob", "Impersonate-Uid", "42")
	forbidden(`userextras/scopes`, "Impersonate-User", "bob", "Impersonate-Extra-Scopes", "all")
	// Then only the impersonated user's rights count.
	jane.get("/api/v1/namespaces/default/secrets", "Impersonate-User", "bob").refused(http.StatusForbidden,
		metav1.StatusReasonForbidden, `User "bob" cannot list`)
	jane.get(pods).refused(http.StatusForbidden, metav1.StatusReasonForbidden, `User "jane"`)
}

// An apply or an update that creates an object requires the right to create it.
func TestApply_ThatCreatesRequiresTheRightToCreate(t *testing.T) {
	t.Parallel()
	s := start(t)
	role := func(verbs ...string) m {
		return m{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": m{"name": "writer"},
			"rules": []m{
				{"apiGroups": []string{""}, "resources": []string{"configmaps", "services"}, "verbs": verbs},
			}}
	}
	s.create(roles, role("patch", "update", "get"))
	s.create(roleBindings, roleBinding("writer", "Role", "writer", subject("User", "jane")))
	jane := s.as("jane")
	apply := func() *answer {
		return jane.patch(configMaps+"/a?fieldManager=jane", "application/apply-patch+yaml", configMap("a"))
	}
	put := func() *answer {
		return jane.put(services+"/a", m{"apiVersion": "v1", "kind": "Service", "metadata": m{"name": "a"},
			"spec": m{"ports": []m{{"port": 80}}}})
	}
	apply().refused(http.StatusForbidden, metav1.StatusReasonForbidden, `cannot create resource "configmaps"`)
	put().refused(http.StatusForbidden, metav1.StatusReasonForbidden, `cannot create resource "services"`)
	s.gone(configMaps + "/a")
	s.gone(services + "/a")
	s.put(roles+"/writer", role("patch", "update", "get", "create")).ok(http.StatusOK)
	apply().ok(http.StatusCreated)
	put().ok(http.StatusCreated)
	s.put(roles+"/writer", role("patch", "update")).ok(http.StatusOK)
	apply().ok(http.StatusOK)
	put().ok(http.StatusOK)
}

// The requester of a certificate is the caller, even if the object names another user: signers rely on it.
func TestSigningRequest_RequesterIsTheCaller(t *testing.T) {
	t.Parallel()
	s := start(t)
	jane := s.may("jane", "certificates.k8s.io", "certificatesigningrequests", "create", "get", "update")
	forged := s.signingRequest("r", "example.com/signer")
	maps.Copy(forged["spec"].(m),
		m{"username": "system:node:a", "uid": "1", "groups": []string{"system:nodes", "system:masters"},
			"extra": m{"a": []string{"b"}}})
	spec := jane.create(requests, forged).at("spec").(m)
	require.Equal(t, "jane", spec["username"])
	require.Equal(t, []any{"system:authenticated"}, spec["groups"])
	require.NotContains(t, spec, "uid")
	require.NotContains(t, spec, "extra")
	stored := s.get(requests + "/r").object()
	stored.Object["spec"].(m)["username"] = "system:node:a"
	jane.put(requests+"/r", stored.Object).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "spec")

	// The server sets the times of a condition that has none.
	stored = s.get(requests + "/r").object()
	stored.Object["status"] = m{"conditions": []m{{"type": "Approved", "status": "True", "reason": "r"}}}
	conditions := s.put(requests+"/r/approval", stored.Object).ok(http.StatusOK).at("status", "conditions").([]any)
	require.NotEmpty(t, conditions[0].(m)["lastUpdateTime"])
	require.NotEmpty(t, conditions[0].(m)["lastTransitionTime"])
}
