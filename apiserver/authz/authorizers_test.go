package authz_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

const (
	patience = 30 * time.Second
	tick     = 5 * time.Millisecond
	header   = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n"
)

// oracle is the server of a webhook, over TLS.
type oracle struct {
	*httptest.Server
	kubeconfig string

	mu      sync.Mutex
	status  map[string]any
	reviews []map[string]any // the reviews that it received
	hang    chan struct{}    // answers wait until it is closed, if it is not nil
}

func startOracle(t testing.TB, status map[string]any) *oracle {
	t.Helper()
	o := &oracle{status: status, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	o.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review map[string]any
		_ = json.NewDecoder(r.Body).Decode(&review)
		o.mu.Lock()
		o.reviews = append(o.reviews, review)
		review["status"] = o.status
		hang, failing := o.hang, o.status == nil
		o.mu.Unlock()
		if hang != nil {
			<-hang
		}
		if failing {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(o.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: o.URL, CertificateAuthorityData: pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE", Bytes: o.Certificate().Raw})}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	require.NoError(t, clientcmd.WriteToFile(*config, o.kubeconfig))
	return o
}

func (o *oracle) says(status map[string]any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.status = status
}

// questions returns the reviews since the last call.
func (o *oracle) questions() (reviews []map[string]any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	reviews, o.reviews = o.reviews, nil
	return reviews
}

// entry returns the webhook's entry in a configuration, with further fields.
func (o *oracle) entry(name, more string) string {
	return fmt.Sprintf("- type: Webhook\n  name: %s\n  webhook: {timeout: 10s, subjectAccessReviewVersion: v1, "+
		"matchConditionSubjectAccessReviewVersion: v1, cacheAuthorizedRequests: false, cacheUnauthorizedRequests: false, "+
		"connectionInfo: {type: KubeConfigFile, kubeConfigFile: %q}, %s}\n", name, o.kubeconfig, more)
}

const (
	denying   = "failurePolicy: Deny"
	abstained = "failurePolicy: NoOpinion"
)

// configured returns the authorizers of a configuration in a file, whose changes they follow.
func configured(t testing.TB, text string) (a *authz.Authorizers, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	config, content, err := authz.ReadConfig(file)
	require.NoError(t, err)
	a, err = authz.New(authz.Options{Configuration: config, File: file, Content: content, RBAC: authz.NewRBAC(),
		Node: authz.NewNode(nil), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { a.Run(ctx) })
	t.Cleanup(func() { cancel(); run.Wait() })
	return a, file
}

var jane = &authn.User{Name: "jane", UID: "7", Groups: []string{"devs"}, Extra: map[string][]string{"a/b": {"c"}}}

func pods(namespace string) *authz.Attributes {
	return &authz.Attributes{User: jane, Verb: "list", Version: "v1", Resource: "pods", Namespace: namespace}
}

func decides(t testing.TB, a authz.Authorizer, attributes *authz.Attributes, want authz.Decision, words string) {
	t.Helper()
	d, reason, err := a.Authorize(t.Context(), attributes)
	require.Equal(t, want, d, "%s %v", reason, err)
	require.Contains(t, fmt.Sprint(reason, err), words)
}

func TestAuthorizers_AskWebhooksInOrderByTheirConditions(t *testing.T) {
	t.Parallel()
	first, second := startOracle(t, map[string]any{"denied": true, "reason": "not here"}),
		startOracle(t, map[string]any{"allowed": true})
	a, _ := configured(t, header+
		first.entry("first", denying+", matchConditions: [{expression: \"has(request.resourceAttributes)\"}, {expression: "+
			"\"request.resourceAttributes.namespace == 'kube-system' && 'devs' in request.groups && request.extra['a/b'] == "+
			"['c']\"}]")+
		second.entry("second", abstained+", matchConditions: [{expression: \"!has(request.resourceAttributes.fieldSelector) "+
			"|| request.resourceAttributes.fieldSelector.requirements[0].values[0] == 'n'\"}]")+
		"- {type: AlwaysDeny, name: alwaysdeny}\n")
	decides(t, a, pods("kube-system"), authz.Deny, "not here")
	require.Len(t, first.questions(), 1)
	require.Empty(t, second.questions())
	decides(t, a, pods("default"), authz.Allow, "")
	require.Empty(t, first.questions())
	require.Equal(t, map[string]any{"user": "jane", "uid": "7", "groups": []any{"devs"},
		"extra": map[string]any{"a/b": []any{"c"}}, "resourceAttributes": map[string]any{"namespace": "default",
			"verb": "list", "version": "v1", "resource": "pods"}}, second.questions()[0]["spec"])

	on := func(node string) *authz.Attributes {
		attributes := pods("default")
		attributes.Fields = fields.OneTermEqualSelector("spec.nodeName", node).Requirements()
		return attributes
	}
	decides(t, a, on("n"), authz.Allow, "")
	decides(t, a, on("m"), authz.NoOpinion, "Everything is forbidden.")
	require.Equal(t, map[string]any{"requirements": []any{map[string]any{"key": "spec.nodeName", "operator": "In",
		"values": []any{"n"}}}}, second.questions()[0]["spec"].(map[string]any)["resourceAttributes"].(map[string]any)["fieldSelector"])

	// The second webhook's condition fails for a path: with NoOpinion the next authorizer is asked.
	path := &authz.Attributes{User: jane, Verb: "get", Path: "/metrics"}
	decides(t, a, path, authz.NoOpinion, "match conditions")
	require.Empty(t, first.questions())
	require.Empty(t, second.questions())
	masters := &authn.User{Name: "root", Groups: []string{authn.GroupMasters}}
	decides(t, a, &authz.Attributes{User: masters, Verb: "get", Path: "/"}, authz.Allow, "")
	require.Equal(t, map[string]float64{
		"decisions_total/Webhook/first/denied": 1, "decisions_total/Webhook/second/allowed": 2,
		"webhook_evaluations_total/first/success": 1, "webhook_evaluations_total/second/success": 2,
		"match_condition_exclusions_total/Webhook/first": 4, "match_condition_exclusions_total/Webhook/second": 1,
		"match_condition_evaluation_errors_total/Webhook/second": 1,
	}, counters(t, a))
}

// counters returns the counters that are not zero, by name and labels.
func counters(t testing.TB, a *authz.Authorizers) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(a.Metrics()...)
	families, err := registry.Gather()
	require.NoError(t, err)
	counted := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			key := strings.TrimPrefix(family.GetName(), "apiserver_authorization_")
			labels := map[string]string{}
			for _, label := range m.Label {
				labels[label.GetName()] = label.GetValue()
			}
			for _, label := range []string{"type", "name", "decision", "result", "status"} {
				if value := labels[label]; value != "" {
					key += "/" + value
				}
			}
			if value := m.Counter.GetValue(); value > 0 {
				counted[key] = value
			}
		}
	}
	return counted
}

func TestAuthorizers_FailurePolicies(t *testing.T) {
	t.Parallel()
	o := startOracle(t, nil)
	path := &authz.Attributes{User: jane, Verb: "get", Path: "/"}
	const wrong = `, matchConditions: [{expression: "request.resourceAttributes.name == 'a'"}]`
	const apart = `, matchConditions: [{expression: "request.resourceAttributes.name == 'a'"}, {expression: "request.user == 'b'"}]`
	allow := "- {type: AlwaysAllow, name: alwaysallow}\n"
	for name, c := range map[string]struct {
		config string
		want   authz.Decision
		words  string
	}{
		"a failing server":                    {o.entry("w", denying) + allow, authz.Deny, "authorization webhook w"},
		"a failing server, others asked":      {o.entry("w", abstained) + allow, authz.Allow, ""},
		"a failing condition":                 {o.entry("w", denying+wrong) + allow, authz.Deny, "no such key"},
		"a failing condition, others asked":   {o.entry("w", abstained+wrong) + allow, authz.Allow, ""},
		"a failing condition and a false one": {o.entry("w", denying+apart) + allow, authz.Allow, ""},
	} {
		a, _ := configured(t, header+c.config)
		d, reason, err := a.Authorize(t.Context(), path)
		require.Equal(t, c.want, d, name)
		require.Contains(t, fmt.Sprint(reason, err), c.words, name)
	}
	// A server that used its whole time is not asked again.
	o.questions()
	o.says(map[string]any{"allowed": true})
	o.hang = make(chan struct{})
	a, _ := configured(t, header+strings.Replace(o.entry("w", denying), "timeout: 10s", "timeout: 50ms", 1)+allow)
	decides(t, a, path, authz.Deny, "authorization webhook w")
	close(o.hang)
	require.Len(t, o.questions(), 1)
	require.InDelta(t, 1, counters(t, a)["webhook_evaluations_total/w/timeout"], 0)
}

func TestAuthorizers_DenyCanceledRequests(t *testing.T) {
	t.Parallel()
	o := startOracle(t, nil)
	o.hang = make(chan struct{})
	defer close(o.hang)
	a, _ := configured(t, header+o.entry("w", abstained)+"- {type: AlwaysAllow, name: alwaysallow}\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d, _, err := a.Authorize(ctx, &authz.Attributes{User: jane, Verb: "get", Path: "/"})
	require.Equal(t, authz.Deny, d)
	require.ErrorIs(t, err, context.Canceled)
}

func TestAuthorizers_OlderReviewsAndCaching(t *testing.T) {
	t.Parallel()
	o := startOracle(t, map[string]any{"allowed": true})
	config := strings.NewReplacer("subjectAccessReviewVersion: v1,", "subjectAccessReviewVersion: v1beta1,",
		"cacheAuthorizedRequests: false, ", "").Replace(o.entry("w", denying))
	a, file := configured(t, header+config)
	for range 3 {
		decides(t, a, pods("default"), authz.Allow, "")
	}
	reviews := o.questions()
	require.Len(t, reviews, 1, "what is allowed is cached")
	require.Equal(t, "authorization.k8s.io/v1beta1", reviews[0]["apiVersion"])
	require.Equal(t, map[string]any{"user": "jane", "uid": "7", "group": []any{"devs"},
		"extra": map[string]any{"a/b": []any{"c"}}, "resourceAttributes": map[string]any{"namespace": "default",
			"verb": "list", "version": "v1", "resource": "pods"}}, reviews[0]["spec"])
	o.says(map[string]any{"allowed": false})
	for range 2 {
		decides(t, a, pods("other"), authz.NoOpinion, "")
	}
	require.Len(t, o.questions(), 2, "what is not allowed is not cached")
	// Answers that were cached under the earlier configuration must not be used any more.
	change(t, a, file, header+config+"- {type: AlwaysDeny, name: alwaysdeny}\n", "success")
	decides(t, a, pods("default"), authz.NoOpinion, "")
}

// change replaces the file and waits until it is applied or rejected.
func change(t *testing.T, a *authz.Authorizers, file, text, status string) {
	t.Helper()
	key := "config_controller_automatic_reloads_total/" + status
	before := counters(t, a)[key]
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	require.Eventually(t, func() bool { return counters(t, a)[key] == before+1 }, patience, tick)
}

func TestAuthorizers_ReloadChangesWebhooksButNotTheOtherTypes(t *testing.T) {
	t.Parallel()
	first, second := startOracle(t, map[string]any{"allowed": true}), startOracle(t, map[string]any{"denied": true})
	const rbac = "- {type: RBAC, name: rbac}\n"
	a, file := configured(t, header+first.entry("w", denying)+rbac)
	decides(t, a, pods("a"), authz.Allow, "")
	change(t, a, file, header+second.entry("w", denying)+rbac+first.entry("x", denying), "success")
	decides(t, a, pods("a"), authz.Deny, "")
	for _, text := range []string{
		header + second.entry("w", denying),
		header + rbac + "- {type: Node, name: node}\n",
		header + rbac + first.entry("w", ""),
		header + "- {type: RBAC, name: rbac, mode: RBAC}\n",
	} {
		change(t, a, file, text, "failure")
		decides(t, a, pods("a"), authz.Deny, "")
	}
	change(t, a, file, header+rbac, "success")
	decides(t, a, pods("a"), authz.NoOpinion, "")
	require.Positive(t, testutil.CollectAndCount(a.Metrics()[0]))
}

func TestAuthorizers_RejectInvalidConfigurations(t *testing.T) {
	t.Parallel()
	o := startOracle(t, nil)
	good := o.entry("w", denying)
	many := strings.Repeat("{expression: 'true'}, ", 65)
	for text, words := range map[string]string{
		"":              "authorizers: Required value: at least one authorization mode must be defined",
		"- {name: a}\n": "authorizers[0].type: Required value",
		"- {type: ABAC, name: abac}\n": `authorizers[0].type: Unsupported value: "ABAC": supported values: "AlwaysAllow", ` +
			`"AlwaysDeny", "Node", "RBAC", "Webhook"`,
		"- {type: RBAC, name: rbac}\n- {type: RBAC, name: rbac}\n":                  `authorizers[1].type: Duplicate value: "RBAC"`,
		"- {type: RBAC, name: mine}\n":                                              "expected name rbac for authorizer RBAC instead of mine",
		"- {type: RBAC}\n":                                                          "authorizers[0].name: Required value",
		good + good:                                                                 `authorizers[1].name: Duplicate value: "w"`,
		o.entry("W_1", denying):                                                     "authorizers[0].name: Invalid value",
		"- {type: RBAC, name: rbac, webhook: {}}\n":                                 "may only be specified when type=Webhook",
		"- {type: Webhook, name: w}\n":                                              "authorizers[0].webhook: Required value: required when type=Webhook",
		strings.Replace(good, "timeout: 10s, ", "", 1):                              "authorizers[0].webhook.timeout: Required value",
		strings.Replace(good, "timeout: 10s", "timeout: 31s", 1):                    `Invalid value: "31s": must be > 0s and <= 30s`,
		strings.Replace(good, "timeout: 10s", "timeout: -1s", 1):                    "must be > 0s and <= 30s",
		strings.Replace(good, "timeout: 10s", "timeout: 1s, authorizedTTL: -1s", 1): "authorizers[0].webhook.authorizedTTL",
		strings.Replace(good, "timeout: 10s", "timeout: 1s, unauthorizedTTL: -1s", 1): "authorizers[0].webhook." +
			"unauthorizedTTL",
		strings.Replace(good, "subjectAccessReviewVersion: v1,", "", 1): "subjectAccessReviewVersion: Required value",
		strings.Replace(good, "subjectAccessReviewVersion: v1,", "subjectAccessReviewVersion: v2,", 1): "webhook." +
			`subjectAccessReviewVersion: Unsupported value: "v2": supported values: "v1", "v1beta1"`,
		strings.Replace(o.entry("w", denying+", matchConditions: [{expression: 'true'}]"),
			"matchConditionSubjectAccessReviewVersion: v1, ", "", 1): "required if match conditions are specified",
		o.entry("w", ""): "authorizers[0].webhook.failurePolicy: Required value",
		o.entry("w", "failurePolicy: Allow"): `failurePolicy: Unsupported value: "Allow": supported values: "NoOpinion", ` +
			`"Deny"`,
		strings.Replace(good, o.kubeconfig, "relative", 1):     "must be an absolute path",
		strings.Replace(good, o.kubeconfig, "/nothing", 1):     "error loading file",
		strings.Replace(good, o.kubeconfig, "/", 1):            "must be a regular file",
		strings.Replace(good, "type: KubeConfigFile, ", "", 1): "authorizers[0].webhook.connectionInfo.type: Required value",
		strings.Replace(good, "type: KubeConfigFile", "type: InClusterConfig", 1): "is not allowed: the server would ask " +
			"itself",
		strings.Replace(good, "type: KubeConfigFile", "type: File", 1):                    "connectionInfo.type: Unsupported value",
		o.entry("w", denying+", matchConditions: ["+many+"]"):                             "matchConditions: Too many: 65",
		o.entry("w", denying+", matchConditions: [{expression: ' '}]"):                    "matchConditions[0].expression: Required",
		o.entry("w", denying+", matchConditions: ["+many[:44]+"]"):                        `expression: Duplicate value: "true"`,
		o.entry("w", denying+", matchConditions: [{expression: request.user}]"):           "must evaluate to bool but got string",
		o.entry("w", denying+", matchConditions: [{expression: \"request.verb == ''\"}]"): "undefined field 'verb'",
	} {
		_, err := authz.ParseConfig([]byte(header + text))
		require.ErrorContains(t, err, words, text)
	}
	_, err := authz.New(authz.Options{Configuration: authz.Modes([]string{"Webhook"}, nil)})
	require.ErrorContains(t, err, "authorization mode Webhook needs a webhook")
	_, err = authz.New(authz.Options{Configuration: authz.Modes([]string{"ABAC"}, nil)})
	require.ErrorContains(t, err, `unknown authorization mode "ABAC", want one of [AlwaysAllow`)
}

// FuzzConfig checks that every file is applied or rejected.
func FuzzConfig(f *testing.F) {
	o := startOracle(f, nil)
	f.Add("- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n")
	f.Add(o.entry("w", denying+", matchConditions: [{expression: \"request.user == 'a'\"}]"))
	f.Add(o.entry("w", abstained+", matchConditions: [{expression: \"has(request.resourceAttributes)\"}]"))
	f.Fuzz(func(t *testing.T, text string) {
		config, err := authz.ParseConfig([]byte(header + text))
		if err != nil {
			return
		}
		require.NotEmpty(t, config.Authorizers)
		for _, a := range config.Authorizers {
			require.NotEmpty(t, a.Name)
			if a.Webhook != nil {
				require.Positive(t, a.Webhook.Timeout.Duration)
				require.LessOrEqual(t, a.Webhook.Timeout.Duration, 30*time.Second)
			}
		}
	})
}

// BenchmarkAuthorizers compares RBAC alone with RBAC as a member of a configuration, and with a webhook before it
// with conditions that exclude the request.
func BenchmarkAuthorizers(b *testing.B) {
	rbac := authz.NewRBAC()
	for _, r := range authz.Bootstrap().ClusterRoles {
		rbac.PutRole("", r.Name, r.Rules)
	}
	for _, c := range authz.Bootstrap().ClusterRoleBindings {
		rbac.PutBinding("", c.Name, c.RoleRef, c.Subjects)
	}
	o := startOracle(b, nil)
	config, err := authz.ParseConfig([]byte(header + o.entry("w", denying+", matchConditions: [{expression: "+
		"\"request.user == 'nobody'\"}]") + "- {type: RBAC, name: rbac}\n"))
	require.NoError(b, err)
	attributes := &authz.Attributes{Verb: "get",
		User: &authn.User{Name: "jane", Groups: []string{authn.GroupAuthenticated}},
		Path: "/version"}
	measure := func(name string, a authz.Authorizer) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d, _, _ := a.Authorize(b.Context(), attributes); d != authz.Allow {
					b.Fatal(d)
				}
			}
		})
	}
	measure("before", authz.Union{rbac})
	alone, err := authz.New(authz.Options{Configuration: authz.Modes([]string{"RBAC"}, nil), RBAC: rbac})
	require.NoError(b, err)
	measure("flags", alone)
	webhook, err := authz.New(authz.Options{Configuration: config, RBAC: rbac})
	require.NoError(b, err)
	measure("excluded-webhook", webhook)
}
