package apiserver_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	hpasV1         = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers"
	strictSecrets  = "/api/v1/namespaces/strict/secrets"
	defaultSecrets = "/api/v1/namespaces/default/secrets"
	applied        = "?fieldManager=test"
)

func secretOf(name string, labels m) m {
	return m{"apiVersion": "v1", "kind": "Secret", "metadata": m{"name": name, "labels": labels}}
}

func metaOnly(version, kind, name string, labels m) m {
	return m{"apiVersion": version, "kind": kind, "metadata": m{"name": name, "labels": labels}}
}

// matchRequests are sent one after the other. matchHooks refer to them by name.
var matchRequests = []struct {
	name, method, path string
	body               m
	media              string
	code               int
}{
	{"create", "POST", configMaps, settings("c", m{"a": "b"}), "", 201},
	{"update", "PUT", configMaps + "/c", settings("c", m{"a": "c"}), "", 200},
	{"patch", "PATCH", configMaps + "/c", m{"data": m{"a": "d"}}, mergePatch, 200},
	{"apply", "PATCH", configMaps + "/c" + applied, settings("c", m{"x": "y"}), applyPatch, 200},
	{"applied", "PATCH", configMaps + "/new" + applied, settings("new", m{"x": "y"}), applyPatch, 201},
	{"delete", "DELETE", configMaps + "/c", nil, "", 200},
	{"collection", "DELETE", configMaps + "?fieldSelector=metadata.name%3Dnew", nil, "", 200},
	{"secret", "POST", defaultSecrets, secretOf("s", m{"watched": "yes"}), "", 201},
	{"unwatch", "PATCH", defaultSecrets + "/s", m{"metadata": m{"labels": m{"watched": "no"}}}, mergePatch, 200},
	{"unwatched", "PATCH", defaultSecrets + "/s", m{"metadata": m{"labels": m{"a": "b"}}}, mergePatch, 200},
	{"namespace", "POST", namespaces, metaOnly("v1", "Namespace", "strict", m{"strict": "yes"}), "", 201},
	{"loosen", "PATCH", namespaces + "/strict", m{"metadata": m{"labels": m{"strict": "no"}}}, mergePatch, 200},
	{"tighten", "PATCH", namespaces + "/strict", m{"metadata": m{"labels": m{"strict": "yes"}}}, mergePatch, 200},
	{"strict", "POST", strictSecrets, secretOf("s", nil), "", 201},
	{"role", "POST", clusterRoles, metaOnly("rbac.authorization.k8s.io/v1", "ClusterRole", "r", nil), "", 201},
	{"deployment", "POST", deployments, deployment("web", 1), "", 201},
	{"scale", "PATCH", deployments + "/web/scale", m{"spec": m{"replicas": 2}}, mergePatch, 200},
	{"status", "PATCH", deployments + "/web/status", m{"status": m{"observedGeneration": 1}}, mergePatch, 200},
	{"hpa", "POST", hpasV1, m{"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": m{"name": "h"},
		"spec": m{"maxReplicas": 3, "targetCPUUtilizationPercentage": 50, "scaleTargetRef": m{"kind": "Deployment",
			"name": "web", "apiVersion": "apps/v1"}}}, "", 201},
	{"pod", "POST", pods, pod("p"), "", 201},
	{"exec", "POST", pods + "/p/exec?command=ls&stdout=true", nil, "", 400},
	{"attach", "POST", pods + "/p/attach?stdout=true", nil, "", 400},
	{"node", "POST", nodes, metaOnly("v1", "Node", "n", nil), "", 201},
	{"binding", "POST", pods + "/p/binding", m{"apiVersion": "v1", "kind": "Binding", "metadata": m{"name": "p"},
		"target": m{"kind": "Node", "name": "n"}}, "", 201},
	{"eviction", "POST", pods + "/p/eviction", m{"apiVersion": "policy/v1", "kind": "Eviction",
		"metadata": m{"name": "p"}}, "", 201},
	{"token", "POST", "/api/v1/namespaces/default/serviceaccounts/default/token",
		m{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": m{}}, "", 201},
	{"lease", "POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases",
		metaOnly("coordination.k8s.io/v1", "Lease", "l", nil), "", 201},
	{"lease by update", "PUT", "/apis/coordination.k8s.io/v1/namespaces/default/leases/m",
		metaOnly("coordination.k8s.io/v1", "Lease", "m", nil), "", 201},
	{"review", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		m{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
			"spec": m{"nonResourceAttributes": m{"path": "/", "verb": "get"}}}, "", 201},
	{"policy", "POST", policiesPath, m{"apiVersion": "admissionregistration.k8s.io/v1",
		"kind": "ValidatingAdmissionPolicy", "metadata": m{"name": "p"},
		"spec": policyOn(rule("", "nothing", "CREATE"), "true")}, "", 201},
	{"read", "GET", configMaps, nil, "", 200},
}

func ruleFor(groups, versions, resources, operations, scope string) m {
	list := func(text string) []string { return strings.Split(text, ",") }
	r := m{"apiGroups": list(groups), "apiVersions": list(versions), "resources": list(resources),
		"operations": list(operations)}
	if scope != "" {
		r["scope"] = scope
	}
	return r
}

func rules(r ...m) m { return m{"rules": r} }

func ruled(r m, more m) m {
	more["rules"] = []m{r}
	return more
}

func when(expressions ...string) []m {
	var list []m
	for i, e := range expressions {
		list = append(list, m{"name": fmt.Sprint("c", i), "expression": e})
	}
	return list
}

var everything = ruleFor("*", "*", "*/*", "*", "*")

// allOf names the requests that the rule * on * matches.
const allOf = "create update patch apply applied delete collection secret unwatch unwatched namespace loosen tighten " +
	"strict role deployment hpa pod node lease lease_by_update"

// matchHooks are webhooks and the names of the requests that they match.
var matchHooks = []struct {
	hook m
	asks string
}{
	{rules(ruleFor("", "v1", "configmaps", "CREATE", "")), "create applied"},
	{rules(ruleFor("", "v1", "configmaps", "UPDATE", "")), "update patch apply"},
	{rules(ruleFor("", "v1", "configmaps", "DELETE", "")), "delete collection"},
	{rules(ruleFor("", "v1", "configmaps", "CONNECT", "")), ""},
	{rules(ruleFor("", "v1", "configmaps", "CREATE,DELETE", "")), "create applied delete collection"},
	{rules(ruleFor("", "v1", "configmaps", "*", "")), "create update patch apply applied delete collection"},
	{rules(ruleFor("", "*", "configmaps,secrets", "CREATE", "")), "create applied secret strict"},
	{rules(ruleFor("*", "*", "*", "*", "")), allOf},
	{rules(everything), allOf + " scale status exec attach binding eviction token"},
	{rules(ruleFor("*", "*", "*", "CREATE", "Cluster")), "namespace role node"},
	{rules(ruleFor("*", "*", "*", "CREATE", "Namespaced")),
		"create applied secret strict deployment hpa pod lease lease_by_update"},
	{rules(ruleFor("*", "*", "*/*", "CREATE", "Cluster")), "namespace role node"},
	{rules(ruleFor("", "*", "*", "UPDATE", "Cluster")), "loosen tighten"},
	{rules(ruleFor("*", "*", "*/*", "CONNECT", "")), "exec attach"},
	{rules(ruleFor("", "v1", "pods/exec", "CONNECT", "")), "exec"},
	{rules(ruleFor("", "v1", "pods/exec", "CREATE", "")), ""},
	{rules(ruleFor("", "v1", "pods/*", "*", "")), "pod exec attach binding eviction"},
	{rules(ruleFor("", "v1", "pods", "*", "")), "pod"},
	{rules(ruleFor("", "v1", "pods/binding", "CREATE", "")), "binding"},
	{rules(ruleFor("", "v1", "pods/eviction", "CREATE", "")), "eviction"},
	{rules(ruleFor("policy", "v1", "evictions", "CREATE", "")), ""},
	{rules(ruleFor("", "v1", "serviceaccounts/token", "CREATE", "")), "token"},
	{rules(ruleFor("apps", "v1", "deployments", "*", "")), "deployment"},
	{rules(ruleFor("apps", "v1", "deployments/scale", "UPDATE", "")), "scale"},
	{rules(ruleFor("apps", "v1", "deployments/status", "*", "")), "status"},
	{rules(ruleFor("apps", "v1", "*/scale,*/status", "*", "")), "scale status"},
	{rules(ruleFor("apps,", "v1", "deployments,pods", "CREATE", "")), "deployment pod"},
	{rules(ruleFor("apps", "v2", "deployments", "*", "")), ""},
	{rules(ruleFor("extensions", "*", "deployments", "*", "")), ""},
	{rules(ruleFor("", "v1", "configmaps", "CREATE", ""), ruleFor("", "v1", "secrets", "UPDATE", "")),
		"create applied unwatch unwatched"},
	// An update that creates is a create; patch and apply are updates.
	{rules(ruleFor("coordination.k8s.io", "v1", "leases", "CREATE", "")), "lease lease_by_update"},
	{rules(ruleFor("coordination.k8s.io", "v1", "leases", "UPDATE", "")), ""},
	// Versions of the same objects.
	{rules(ruleFor("autoscaling", "v1", "horizontalpodautoscalers", "*", "")), "hpa"},
	{rules(ruleFor("autoscaling", "v2", "horizontalpodautoscalers", "*", "")), "hpa"},
	{ruled(ruleFor("autoscaling", "v2", "horizontalpodautoscalers", "*", ""), m{"matchPolicy": "Equivalent"}), "hpa"},
	{ruled(ruleFor("autoscaling", "v2", "horizontalpodautoscalers", "*", ""), m{"matchPolicy": "Exact"}), ""},
	{ruled(ruleFor("autoscaling", "v1", "horizontalpodautoscalers", "*", ""), m{"matchPolicy": "Exact"}), "hpa"},
	{rules(ruleFor("autoscaling", "v3", "horizontalpodautoscalers", "*", "")), ""},
	// Webhooks are not called for reviews and the configuration of admission.
	{rules(ruleFor("admissionregistration.k8s.io", "*", "*", "*", "")), ""},
	{rules(ruleFor("authorization.k8s.io", "*", "*", "*", "")), ""},
	// Namespaces, by their labels. For a Namespace, its own new labels count.
	{ruled(everything, m{"namespaceSelector": m{"matchLabels": m{"strict": "yes"}}}), "namespace tighten strict role node"},
	{ruled(everything, m{"namespaceSelector": m{"matchLabels": m{"strict": "no"}}}), "loosen role node"},
	{ruled(ruleFor("", "*", "*", "*", ""), m{"namespaceSelector": m{"matchExpressions": []m{
		{"key": "strict", "operator": "Exists"}}}}), "namespace loosen tighten strict node"},
	{ruled(ruleFor("", "*", "secrets", "*", ""), m{"namespaceSelector": m{"matchExpressions": []m{
		{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": []string{"strict"}}}}}),
		"secret unwatch unwatched"},
	// Objects, by the labels of the new or the old one.
	{ruled(ruleFor("", "*", "secrets", "*", ""), m{"objectSelector": m{"matchLabels": m{"watched": "yes"}}}),
		"secret unwatch"},
	{ruled(ruleFor("", "*", "secrets", "*", ""), m{"objectSelector": m{"matchLabels": m{"watched": "no"}}}),
		"unwatch unwatched"},
	{ruled(ruleFor("", "*", "secrets", "*", ""), m{"objectSelector": m{"matchExpressions": []m{
		{"key": "watched", "operator": "DoesNotExist"}}}}), "strict"},
	{ruled(ruleFor("", "*", "pods/exec", "*", ""), m{"objectSelector": m{"matchLabels": m{"a": "b"}}}), ""},
	// Conditions.
	{ruled(ruleFor("", "*", "configmaps", "*", ""), m{"matchConditions": when("request.operation == 'CREATE'")}),
		"create applied"},
	{ruled(ruleFor("", "*", "configmaps", "*", ""), m{"matchConditions": when("object != null",
		"has(object.data) && 'x' in object.data")}), "apply applied"},
	{ruled(ruleFor("", "*", "configmaps", "*", ""), m{"matchConditions": when("object == null")}), "delete collection"},
	{ruled(ruleFor("", "*", "configmaps", "*", ""), m{"matchConditions": when(
		"oldObject != null && oldObject.data.?a.orValue('') == 'c'")}), "patch"},
	{ruled(ruleFor("autoscaling", "v2", "horizontalpodautoscalers", "*", ""), m{"matchConditions": when(
		"has(object.spec.metrics) && request.kind.version == 'v2' && request.requestKind.version == 'v1'")}), "hpa"},
	{ruled(ruleFor("", "*", "configmaps", "*", ""), m{"matchConditions": when(
		"authorizer.group('').resource('configmaps').namespace('default').check('get').allowed()")}),
		"create update patch apply applied delete collection"},
	{ruled(ruleFor("", "*", "configmaps", "*", ""), m{"failurePolicy": "Ignore", "matchConditions": when(
		"object.data.nothing == 'x'")}), ""},
	{ruled(ruleFor("", "*", "configmaps", "*", ""), m{"matchConditions": when("object.data.nothing == 'x'",
		"false")}), ""},
	{ruled(ruleFor("", "*", "namespaces", "*", ""), m{"matchConditions": when("request.namespace == 'strict'")}),
		"namespace loosen tighten"},
	{ruled(everything, m{"matchConditions": when("request.userInfo.username == 'nobody'")}), ""},
}

// TestWebhooks_AreCalledForMatchingRequests sends each request once, with all webhooks of both types.
func TestWebhooks_AreCalledForMatchingRequests(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.create("/api/v1/namespaces/default/serviceaccounts", metaOnly("v1", "ServiceAccount", "default", nil))
	var mutating, validating []m
	for i, c := range matchHooks {
		mutating = append(mutating, h.hook(fmt.Sprintf("m%d.example.com", i), c.hook))
		validating = append(validating, h.hook(fmt.Sprintf("v%d.example.com", i), c.hook))
	}
	h.mutates("m", mutating...)
	h.validates("v", validating...)
	matched := map[string][]string{} // the names of the requests, by webhook
	for _, r := range matchRequests {
		var body any
		if r.body != nil {
			body = r.body
		}
		var headers []string
		if r.media != "" {
			headers = []string{"Content-Type", r.media}
		}
		a := h.do(r.method, r.path, body, headers...)
		require.Equal(t, r.code, a.code, "%s: %s", r.name, a.body)
		for i := range matchHooks {
			for _, kind := range []string{"m", "v"} {
				name := fmt.Sprintf("%s%d.example.com", kind, i)
				for range h.asked(name) {
					matched[name] = append(matched[name], strings.ReplaceAll(r.name, " ", "_"))
				}
			}
		}
	}
	for i, c := range matchHooks {
		want := strings.Fields(c.asks)
		slices.Sort(want)
		for _, kind := range []string{"m", "v"} {
			got := matched[fmt.Sprintf("%s%d.example.com", kind, i)]
			slices.Sort(got)
			require.Equal(t, strings.Join(want, " "), strings.Join(got, " "), "%s%d: %v", kind, i, c.hook)
		}
	}
}

// A condition that cannot be evaluated fails the request, unless another one is false or failures are ignored.
func TestWebhooks_ConditionsThatFail(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.validates("v", h.hook("h.example.com", m{"matchConditions": when("object.data.nothing == 'x'", "true")}))
	h.do(http.MethodPost, configMaps, settings("c", m{})).refused(403, "Forbidden",
		`configmaps "c" is forbidden: expression 'object.data.nothing == 'x'' resulted in error: no such key: `)
	require.Empty(t, h.asked("h.example.com"))
	h.gone(configMaps + "/c")
}

// The answer for a namespace that does not exist is 404, before webhooks are called.
func TestWebhooks_SelectNamespacesThatExist(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.mutates("m", h.hook("h.example.com", m{"namespaceSelector": m{"matchLabels": m{"a": "b"}}}))
	h.do(http.MethodPost, "/api/v1/namespaces/none/configmaps", settings("c", m{})).refused(404, "NotFound",
		`namespaces "none" not found`)
	require.Empty(t, h.asked("h.example.com"))
}
