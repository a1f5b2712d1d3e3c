package audit

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

func policyOf(t testing.TB, text string) *Policy {
	t.Helper()
	p, err := ParsePolicy([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n" + text))
	require.NoError(t, err)
	return p
}

func TestPolicy_RejectsInvalidPolicies(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	for text, words := range map[string]string{
		"": "apiVersion audit.k8s.io/v1 and kind Policy",
		"apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]": "audit.k8s.io/v1beta1",
		head:                                  "must have rules",
		head + "rules: [{}]":                  "rules[0].level: Required value",
		head + "rules: [{level: All}]":        `rules[0].level: Unsupported value: "All"`,
		head + "rules: [{level: None, x: 1}]": `unknown field "x"`,
		head + "rules: [{level: None, level: None}]":                                       `already set`,
		head + "omitStages: [Never]\nrules: [{level: None}]":                               `omitStages[0]: Invalid value: "Never"`,
		head + "rules: [{level: None, omitStages: [Panic, Soon]}]":                         `rules[0].omitStages[1]: Invalid value: "Soon"`,
		head + "rules: [{level: None, nonResourceURLs: [logs]}]":                           "must begin with a '/' character",
		head + "rules: [{level: None, nonResourceURLs: ['/a*b']}]":                         "must be the final character",
		head + "rules: [{level: None, resources: [{group: rbac/v1}]}]":                     `rules[0].resources.group: Invalid value`,
		head + "rules: [{level: None, resources: [{resourceNames: [a]}]}]":                 "requires at least one resource",
		head + "rules: [{level: None, nonResourceURLs: [/a], namespaces: [b]}]":            "cannot apply to both",
		head + "rules: [{level: None, nonResourceURLs: [/a], resources: [{group: apps}]}]": "cannot apply to both",
	} {
		_, err := ParsePolicy([]byte(text))
		require.ErrorContains(t, err, words, text)
	}
}

var tim = &authn.User{Name: "tim@k8s.io", Groups: []string{"humans", "developers"}}

// These are the requests and rules of the test of k8s.io/apiserver/pkg/audit/policy.
var (
	policyRequests = map[string]authz.Attributes{
		"namespaced": {User: tim, Verb: "get", Namespace: "default", Version: "v1", Resource: "pods", Name: "busybox"},
		"cluster": {User: tim, Verb: "get", Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles",
			Name: "edit"},
		"nonResource": {User: tim, Verb: "get", Path: "/logs/kubelet.log"},
		"subresource": {User: tim, Verb: "get", Namespace: "default", Version: "v1", Resource: "pods",
			Subresource: "log", Name: "busybox"},
		"unauthorized": {Verb: "get", Namespace: "default", Version: "v1", Resource: "pods", Name: "busybox"},
	}
	policyRules = map[string]string{
		"default":         "{level: Metadata}",
		"create":          "{level: Request, verbs: [create]}",
		"tims":            "{level: Metadata, users: [tim@k8s.io]}",
		"humans":          "{level: Metadata, userGroups: [humans]}",
		"serviceAccounts": "{level: Request, userGroups: ['system:serviceaccounts']}",
		"getPods":         "{level: RequestResponse, verbs: [get], resources: [{resources: [pods]}]}",
		"getPodLogs":      "{level: Request, verbs: [get], resources: [{resources: [pods/log]}]}",
		"getAny":          "{level: Request, verbs: [get], resources: [{resources: ['*']}]}",
		"getAnyLog":       "{level: Request, verbs: [get], resources: [{resources: ['*/log']}]}",
		"getBelowPods":    "{level: Request, verbs: [get], resources: [{resources: ['pods/*']}]}",
		"getClusterRoles": "{level: RequestResponse, verbs: [get], namespaces: [''], " +
			"resources: [{group: rbac.authorization.k8s.io, resources: [clusterroles]}]}",
		"getLogs":    "{level: RequestResponse, verbs: [get], nonResourceURLs: ['/logs*']}",
		"getMetrics": "{level: Request, verbs: [get], nonResourceURLs: [/metrics]}",
		"clusterRoleEdit": "{level: Request, resources: [{group: rbac.authorization.k8s.io, resources: [clusterroles], " +
			"resourceNames: [edit]}]}",
		"group": "{level: Request, resources: [{group: rbac.authorization.k8s.io}]}",
		"late":  "{level: Request, omitStages: [RequestReceived]}",
	}
)

func TestPolicy_FirstMatchingRuleDecides(t *testing.T) {
	t.Parallel()
	const none, metadata, request, response = LevelNone, LevelMetadata, LevelRequest, LevelRequestResponse
	for _, c := range []struct {
		request string
		rules   string
		want    Level
	}{
		{"namespaced", "default", metadata}, {"namespaced", "create", none}, {"namespaced", "tims", metadata},
		{"namespaced", "humans", metadata}, {"namespaced", "serviceAccounts", none}, {"namespaced", "getPods", response},
		{"namespaced", "getClusterRoles", none}, {"namespaced", "getLogs", none}, {"namespaced", "getMetrics", none},
		{"namespaced", "getMetrics serviceAccounts default", metadata},
		{"namespaced", "getMetrics getPods default", response}, {"namespaced", "getPodLogs getPods", response},
		{"namespaced", "getBelowPods", request}, {"namespaced", "getAnyLog", none}, {"namespaced", "getAny", request},
		{"namespaced", "group", none},
		{"cluster", "default", metadata}, {"cluster", "create", none}, {"cluster", "getPods", none},
		{"cluster", "getClusterRoles", response}, {"cluster", "clusterRoleEdit getClusterRoles", request},
		{"cluster", "getLogs", none}, {"cluster", "getMetrics getClusterRoles default", response},
		{"cluster", "getPodLogs getPods", none}, {"cluster", "group", request}, {"cluster", "getAny", none},
		{"nonResource", "default", metadata}, {"nonResource", "tims", metadata}, {"nonResource", "getPods", none},
		{"nonResource", "getLogs", response}, {"nonResource", "getMetrics", none}, {"nonResource", "getAny", none},
		{"nonResource", "getLogs getClusterRoles default", response},
		{"subresource", "getPodLogs getPods", request}, {"subresource", "getPods", none},
		{"subresource", "getAny", request}, {"subresource", "getAnyLog", request}, {"subresource", "getBelowPods", request},
		{"unauthorized", "tims", none}, {"unauthorized", "tims default", metadata}, {"unauthorized", "humans", none},
		{"unauthorized", "humans default", metadata}, {"unauthorized", "", none},
	} {
		text := "rules:\n- {level: None, users: [nobody]}\n"
		for _, name := range strings.Fields(c.rules) {
			require.Contains(t, policyRules, name)
			text += "- " + policyRules[name] + "\n"
		}
		a, ok := policyRequests[c.request]
		require.True(t, ok)
		require.Equal(t, c.want, policyOf(t, text).Decide(&a).Level, "%s: %s", c.request, c.rules)
	}
}

func TestPolicy_OmitsStagesAndManagedFields(t *testing.T) {
	t.Parallel()
	a := policyRequests["namespaced"]
	d := policyOf(t, "omitStages: [ResponseStarted]\nrules: ["+policyRules["late"]+"]\n").Decide(&a)
	require.Equal(t, []bool{true, true, false, false}, []bool{d.omit.has(StageRequestReceived),
		d.omit.has(StageResponseStarted), d.omit.has(StageResponseComplete), d.omit.has(StagePanic)})
	require.False(t, d.OmitManagedFields)
	for text, want := range map[string]bool{
		"omitManagedFields: true\nrules: [{level: Request}]":                            true,
		"omitManagedFields: true\nrules: [{level: Request, omitManagedFields: false}]":  false,
		"omitManagedFields: false\nrules: [{level: Request, omitManagedFields: true}]":  true,
		"omitManagedFields: false\nrules: [{level: Request, omitManagedFields: false}]": false,
	} {
		require.Equal(t, want, policyOf(t, text).Decide(&a).OmitManagedFields, text)
	}
}

// Unlike in Kubernetes, a rule with a wildcard does not record credentials.
func TestPolicy_RecordsCredentialsOnlyByName(t *testing.T) {
	t.Parallel()
	secret := authz.Attributes{User: tim, Verb: "get", Resource: "secrets", Namespace: "a", Name: "s"}
	token := authz.Attributes{User: tim, Verb: "create", Resource: "serviceaccounts", Subresource: "token", Name: "s"}
	review := authz.Attributes{User: tim, Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"}
	for _, c := range []struct {
		rule string
		a    authz.Attributes
		want Level
	}{
		{"{level: Request}", secret, LevelMetadata},
		{"{level: RequestResponse, namespaces: [a]}", secret, LevelMetadata},
		{"{level: Request, resources: [{group: ''}]}", secret, LevelMetadata},
		{"{level: Request, resources: [{resources: ['*']}]}", secret, LevelMetadata},
		{"{level: Request, resources: [{resources: ['secrets/*']}]}", secret, LevelMetadata},
		{"{level: Request, resources: [{resources: [secrets], resourceNames: [x]}, {resources: ['*']}]}", secret,
			LevelMetadata},
		{"{level: Request, resources: [{resources: ['*', secrets]}]}", secret, LevelRequest},
		{"{level: None, resources: [{resources: [secrets]}]}", secret, LevelNone},
		{"{level: Request, resources: [{resources: ['serviceaccounts/*']}]}", token, LevelMetadata},
		{"{level: Request, resources: [{resources: ['*/token']}]}", token, LevelMetadata},
		{"{level: Request, resources: [{resources: ['serviceaccounts/token']}]}", token, LevelRequest},
		{"{level: Request, resources: [{group: authentication.k8s.io}]}", review, LevelMetadata},
		{"{level: Request, resources: [{group: authentication.k8s.io, resources: [tokenreviews]}]}", review, LevelRequest},
	} {
		require.Equal(t, c.want, policyOf(t, "rules: ["+c.rule+"]").Decide(&c.a).Level, c.rule)
	}
}

// The policy in the documentation is valid and has the documented effect.
func TestPolicy_InTheDocumentationWorks(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/audit.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(page), "    apiVersion: audit.k8s.io/v1\n    kind: Policy\n")
	require.True(t, found)
	text, _, _ = strings.Cut(text, "\n\n")
	p := policyOf(t, strings.ReplaceAll(text, "\n    ", "\n")[4:])
	for want, a := range map[Level]authz.Attributes{
		LevelNone:     {User: tim, Verb: "get", Path: "/livez"},
		LevelMetadata: {User: tim, Verb: "create", Resource: "secrets"},
		LevelRequest:  {User: tim, Verb: "create", Resource: "pods"},
	} {
		require.Equal(t, want, p.Decide(&a).Level)
	}
}
