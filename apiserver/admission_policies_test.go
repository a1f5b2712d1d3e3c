package apiserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	policiesPath  = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
	policyBinds   = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
	mutatePath    = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
	mutateBinds   = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
	configMapsURL = "/api/v1/namespaces/default/configmaps"
)

// rule returns a resource rule of a policy.
func rule(group, resource string, operations ...string) m {
	return m{"apiGroups": []string{group}, "apiVersions": []string{"*"}, "resources": []string{resource},
		"operations": operations}
}

// validating creates a policy and a binding of the same name.
func (s *server) validating(name string, spec, bind m) {
	s.t.Helper()
	s.create(policiesPath, m{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
		"metadata": m{"name": name}, "spec": spec})
	if bind["validationActions"] == nil {
		bind["validationActions"] = []string{"Deny"}
	}
	bind["policyName"] = name
	s.create(policyBinds, m{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
		"metadata": m{"name": name + "-b"}, "spec": bind})
}

func (s *server) mutating(name string, spec, bind m) {
	s.t.Helper()
	if spec["reinvocationPolicy"] == nil {
		spec["reinvocationPolicy"] = "Never"
	}
	bind["policyName"] = name
	s.create(mutatePath, m{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
		"metadata": m{"name": name}, "spec": spec})
	s.create(mutateBinds, m{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
		"metadata": m{"name": name + "-b"}, "spec": bind})
}

func policyOn(r m, expression string) m {
	return m{"matchConstraints": m{"resourceRules": []m{r}}, "validations": []m{{"expression": expression}}}
}

func settings(name string, data m) m {
	return m{"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": name}, "data": data}
}

func TestValidatingPolicy_AnswersAsKubernetes(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.validating("small", m{
		"matchConstraints": m{"resourceRules": []m{rule("", "configmaps", "CREATE", "UPDATE")}},
		"variables":        []m{{"name": "n", "expression": "size(object.data)"}},
		"validations": []m{
			{"expression": "variables.n <= 1", "messageExpression": "'has ' + string(variables.n) + ' entries'"},
			{"expression": "!('big' in object.data)", "message": "no big ones", "reason": "RequestEntityTooLarge"},
			{"expression": "!('secret' in object.data)", "reason": "Forbidden"},
		},
	}, m{})
	for _, c := range []struct {
		name, key, message string
		code               int
		reason             string
	}{
		{"a", "x", "", 201, ""},
		{"b", "big", "no big ones", 413, "RequestEntityTooLarge"},
		{"c", "secret", "failed expression: !('secret' in object.data)", 403, "Forbidden"},
	} {
		a := s.do(http.MethodPost, configMapsURL, settings(c.name, m{c.key: "1"}))
		require.Equal(t, c.code, a.code, "%s", a.body)
		if c.message != "" {
			text := "ValidatingAdmissionPolicy 'small' with binding 'small-b' denied request: " + c.message
			require.Equal(t, fmt.Sprintf("configmaps %q is forbidden: %s", c.name, text), a.at("message"))
			require.Equal(t, c.reason, a.at("reason"))
			require.Equal(t, text, a.at("details", "causes").([]any)[0].(m)["message"])
		}
	}
	a := s.do(http.MethodPost, configMapsURL, settings("d", m{"x": "1", "y": "2"}))
	require.Equal(t, 422, a.code)
	require.Equal(t, "Invalid", a.at("reason"))
	require.Contains(t, a.at("message"), "denied request: has 2 entries")

	// Existing objects are validated at their next write: update, patch, apply, dry run.
	a = s.patch(configMapsURL+"/a", mergePatch, m{"data": m{"y": "2"}})
	require.Equal(t, 422, a.code, "%s", a.body)
	a = s.patch(configMapsURL+"/a?dryRun=All", mergePatch, m{"data": m{"y": "2"}})
	require.Equal(t, 422, a.code, "%s", a.body)
	a = s.do(http.MethodPatch, configMapsURL+"/new?fieldManager=f", settings("new", m{"x": "1", "y": "2"}),
		"Content-Type", "application/apply-patch+yaml")
	require.Equal(t, 422, a.code, "%s", a.body)
	s.get(configMapsURL + "/new").ok(404)

	// A policy that is changed or deleted takes effect with the next request.
	s.patch(policiesPath+"/small", mergePatch, m{"spec": m{"validations": []m{{"expression": "variables.n <= 2"}}}}).ok(
		200)
	s.patch(configMapsURL+"/a", mergePatch, m{"data": m{"y": "2"}}).ok(200)
	require.Equal(t, 422, s.patch(configMapsURL+"/a", mergePatch, m{"data": m{"z": "2"}}).code)
	s.do(http.MethodDelete, policyBinds+"/small-b", nil).ok(200)
	s.patch(configMapsURL+"/a", mergePatch, m{"data": m{"z": "2"}}).ok(200)
}

func TestValidatingPolicy_MatchesRequests(t *testing.T) {
	t.Parallel()
	s := start(t)
	refuse := func(name string, constraints m) {
		s.validating(name,
			m{"matchConstraints": constraints,
				"validations": []m{{"expression": "object != null && has(object.metadata) && " +
					"has(object.metadata.labels) && 'pass' in object.metadata.labels", "message": name +
					" says no"}}}, m{})
	}
	s.create(deployments, deployment("web", 1))
	s.create(pods, pod("p"))
	s.create(configMapsURL, settings("old", m{}))
	s.create(namespaces,
		m{"apiVersion": "v1", "kind": "Namespace", "metadata": m{"name": "strict", "labels": m{"strict": "yes"}}})
	hpa := m{"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": m{"name": "h"}, "spec": m{
		"maxReplicas": 3, "targetCPUUtilizationPercentage": 50, "scaleTargetRef": m{"kind": "Deployment", "name": "web",
			"apiVersion": "apps/v1"}}}

	refuse("scale", m{"resourceRules": []m{rule("apps", "deployments/scale", "UPDATE")}})
	refuse("status", m{"resourceRules": []m{rule("apps", "deployments/status", "*")}})
	refuse("exec", m{"resourceRules": []m{rule("", "pods/exec", "CONNECT")}})
	refuse("deletion", m{"resourceRules": []m{rule("", "configmaps", "DELETE")}})
	refuse("eviction", m{"resourceRules": []m{rule("", "pods/eviction", "CREATE")}})
	refuse("strict", m{"namespaceSelector": m{"matchLabels": m{"strict": "yes"}},
		"resourceRules":        []m{rule("", "*", "CREATE")},
		"excludeResourceRules": []m{rule("", "secrets", "*")}})
	refuse("selected", m{"objectSelector": m{"matchLabels": m{"watched": "yes"}},
		"resourceRules": []m{rule("", "secrets", "CREATE")}})
	refuse("cluster",
		m{"resourceRules": []m{{"apiGroups": []string{"*"}, "apiVersions": []string{"*"}, "resources": []string{"*"},
			"operations": []string{"CREATE"}, "scope": "Cluster", "resourceNames": []string{"unwanted"}}}})
	refuse("exact", m{"matchPolicy": "Exact",
		"resourceRules": []m{{"apiGroups": []string{"autoscaling"}, "apiVersions": []string{"v2beta"},
			"resources": []string{"horizontalpodautoscalers"}, "operations": []string{"CREATE"}}}})
	s.validating("equivalent", m{
		"matchConstraints": m{"resourceRules": []m{{"apiGroups": []string{"autoscaling"}, "apiVersions": []string{"v2"},
			"resources": []string{"horizontalpodautoscalers"}, "operations": []string{"CREATE"}}}},
		"validations": []m{{"expression": "object.apiVersion == 'autoscaling/v2' && has(object.spec.metrics) && " +
			"request.requestResource.version == 'v1' && request.resource.version == 'v2' && request.kind.version " +
			"== 'v2' && oldObject == null",
			"message": "was v2"}, {"expression": "false", "message": "equivalent says no"}},
	}, m{})

	secret := func(name string, labels m) m {
		return m{"apiVersion": "v1", "kind": "Secret", "metadata": m{"name": name, "labels": labels}}
	}
	for _, c := range []struct {
		name   string
		answer *answer
		by     string
	}{
		{"scale", s.patch(deployments+"/web/scale", mergePatch, m{"spec": m{"replicas": 2}}), "scale says no"},
		{"spec", s.patch(deployments+"/web", mergePatch, m{"spec": m{"replicas": 2}}), ""},
		{"status", s.patch(deployments+"/web/status", mergePatch, m{"status": m{"observedGeneration": 1}}),
			"status says no"},
		{"exec", s.do(http.MethodPost, pods+"/p/exec?command=ls&stdout=true", nil), "exec says no"},
		{"delete", s.do(http.MethodDelete, configMapsURL+"/old", nil), "deletion says no"},
		{"collection", s.do(http.MethodDelete, configMapsURL, nil), "deletion says no"},
		{"eviction", s.do(http.MethodPost, pods+"/p/eviction", m{"apiVersion": "policy/v1", "kind": "Eviction",
			"metadata": m{"name": "p"}}), "eviction says no"},
		{"namespace", s.do(http.MethodPost, "/api/v1/namespaces/strict/configmaps", settings("c", m{})),
			"strict says no"},
		{"excluded", s.do(http.MethodPost, "/api/v1/namespaces/strict/secrets", secret("s", nil)), ""},
		{"selected", s.do(http.MethodPost, "/api/v1/namespaces/default/secrets", secret("s", m{"watched": "yes"})),
			"selected says no"},
		{"not selected", s.do(http.MethodPost, "/api/v1/namespaces/default/secrets", secret("s", m{"watched": "no"})),
			""},
		{"cluster", s.do(http.MethodPost, namespaces,
			m{"apiVersion": "v1", "kind": "Namespace", "metadata": m{"name": "unwanted"}}), "cluster says no"},
		{"not of the cluster", s.do(http.MethodPost, configMapsURL, settings("unwanted", m{})), ""},
		{"equivalent", s.do(http.MethodPost, "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", hpa),
			"equivalent says no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.by == "" {
				require.Less(t, c.answer.code, 300, "%s", c.answer.body)
				return
			}
			require.Equal(t, 422, c.answer.code, "%s", c.answer.body)
			require.Contains(t, c.answer.at("message"), c.by)
		})
	}
}

func TestValidatingPolicy_TakesParameters(t *testing.T) {
	t.Parallel()
	s := start(t)
	limit := func(name, at string, labels m) m {
		return m{"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": name, "labels": labels},
			"data": m{"most": at}}
	}
	spec := policyOn(rule("apps", "deployments", "CREATE"),
		"params == null || object.spec.replicas <= int(params.data.most)")
	spec["paramKind"] = m{"apiVersion": "v1", "kind": "ConfigMap"}
	s.create("/api/v1/namespaces/kube-system/configmaps", limit("five", "5", m{"limit": "yes"}))
	s.validating("named", spec,
		m{"paramRef": m{"name": "five", "namespace": "kube-system", "parameterNotFoundAction": "Deny"}})
	s.create(deployments, deployment("five", 5))
	require.Contains(t, s.do(http.MethodPost, deployments, deployment("six", 6)).at("message"),
		"denied request: failed expression")
	s.do(http.MethodDelete, "/api/v1/namespaces/kube-system/configmaps/five", nil).ok(200)
	a := s.do(http.MethodPost, deployments, deployment("one", 1))
	require.Equal(t, 422, a.code)
	require.Contains(t, a.at("message"), "ValidatingAdmissionPolicy 'named' with binding 'named-b' denied "+
		"request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction")

	// Several parameters, in the namespace of the request; the object must pass with each.
	s.patch(policyBinds+"/named-b", mergePatch,
		m{"spec": m{"paramRef": m{"name": nil, "namespace": nil, "selector": m{"matchLabels": m{"limit": "yes"}},
			"parameterNotFoundAction": "Allow"}}}).ok(200)
	s.create(deployments, deployment("hundred", 100))
	s.create(configMapsURL, limit("a", "9", m{"limit": "yes"}))
	s.create(configMapsURL, limit("b", "3", m{"limit": "yes"}))
	s.create(configMapsURL, limit("c", "1", m{"limit": "no"}))
	s.create(deployments, deployment("three", 3))
	require.Equal(t, 422, s.do(http.MethodPost, deployments, deployment("four", 4)).code)

	// A kind that is not served.
	s.patch(policiesPath+"/named", mergePatch,
		m{"spec": m{"paramKind": m{"apiVersion": "example.com/v1", "kind": "Limit"}}}).ok(200)
	require.Contains(t, s.do(http.MethodPost, deployments, deployment("two", 2)).at("message"), "not known")
	s.patch(policiesPath+"/named", mergePatch, m{"spec": m{"failurePolicy": "Ignore"}}).ok(200)
	s.create(deployments, deployment("two", 2))
}

func TestValidatingPolicy_ActsAndFails(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.validating("warner", policyOn(rule("", "configmaps", "CREATE"), "object.metadata.name != 'w'"),
		m{"validationActions": []string{"Warn", "Audit"}})
	a := s.create(configMapsURL, settings("w", m{}))
	require.Equal(t,
		[]string{`299 - "Validation failed for ValidatingAdmissionPolicy 'warner' with binding 'warner-b': failed expression: object.metadata.name != 'w'"`}, a.header.Values("Warning"))

	broken := policyOn(rule("", "secrets", "CREATE"), "object.missing == 1")
	s.validating("broken", broken, m{})
	secret := m{"apiVersion": "v1", "kind": "Secret", "metadata": m{"name": "s"}}
	a = s.do(http.MethodPost, "/api/v1/namespaces/default/secrets", secret)
	require.Equal(t, 422, a.code)
	require.Contains(t, a.at("message"),
		"denied request: expression 'object.missing == 1' resulted in error: no such key: missing")
	s.patch(policiesPath+"/broken", mergePatch,
		m{"spec": m{"matchConditions": []m{{"name": "c", "expression": "request.userInfo.username == 'nobody'"},
			{"name": "d", "expression": "object.missing == 2"}}}}).ok(200)
	s.create("/api/v1/namespaces/default/secrets", secret)
	secret["metadata"].(m)["name"] = "t"
	s.patch(policiesPath+"/broken", mergePatch,
		m{"spec": m{"matchConditions": []m{{"name": "d", "expression": "object.missing == 2"}}}}).ok(200)
	require.Contains(t, s.do(http.MethodPost, "/api/v1/namespaces/default/secrets", secret).at("message"),
		"expression 'object.missing == 2' resulted in error: no such key: missing")
	s.patch(policiesPath+"/broken", mergePatch, m{"spec": m{"failurePolicy": "Ignore"}}).ok(200)
	s.create("/api/v1/namespaces/default/secrets", secret)

	// Expressions may query rights and the namespace, until the budget is spent.
	s.validating("asks", m{
		"matchConstraints": m{"resourceRules": []m{rule("", "endpoints", "CREATE")}},
		"validations": []m{
			{"expression": "authorizer.requestResource.check('create').allowed() && " +
				"!authorizer.serviceAccount('default', 'default').group('').resource('pods').check('list').allowed()",
				"message": "rights"},
			{"expression": "namespaceObject.metadata.name == 'default' && namespaceObject.status.phase == 'Active'",
				"message": "namespace"},
			{"expression": "request.operation == 'CREATE' && request.name == 'e' && request.namespace == " +
				"'default' && !request.dryRun && request.options.kind == 'CreateOptions'", "message": "request"},
			{"expression": "[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, " +
				"[1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, " +
				"[1,2,3,4,5,6,7,8,9,10].all(f, a + b + c + d + e + f > 0))))))"},
		},
	}, m{})
	a = s.do(http.MethodPost, "/api/v1/namespaces/default/endpoints",
		m{"apiVersion": "v1", "kind": "Endpoints", "metadata": m{"name": "e"}})
	require.Equal(t, 422, a.code, "%s", a.body)
	require.Contains(t, a.at("message"), "operation cancelled: actual cost limit exceeded")
}

func TestMutatingPolicy_ChangesObjects(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.mutating("labels", m{
		"matchConstraints": m{"resourceRules": []m{rule("apps", "deployments", "CREATE", "UPDATE")}},
		"mutations": []m{
			{"patchType": "ApplyConfiguration",
				"applyConfiguration": m{"expression": "Object{metadata: Object.metadata{labels: {'owner': " +
					"request.userInfo.username}}, spec: Object.spec{template: Object.spec.template{spec: " +
					"Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: 'side', " +
					"image: 'side:1'}]}}}}"}},
			{"patchType": "JSONPatch", "jsonPatch": m{"expression": "[JSONPatch{op: 'add', path: " +
				"'/metadata/labels/' + jsonpatch.escapeKey('a/b'), value: object.metadata.labels['owner']}]"}},
		},
	}, m{})
	a := s.create(deployments, deployment("web", 1))
	owner := a.at("metadata", "labels").(m)["owner"]
	require.NotEmpty(t, owner)
	require.Equal(t, owner, a.at("metadata", "labels").(m)["a/b"])
	containers := a.at("spec", "template", "spec", "containers").([]any)
	require.Len(t, containers, 2)
	require.Equal(t, "/dev/termination-log", containers[1].(m)["terminationMessagePath"],
		"what a policy adds has its defaults")

	// In order, and again if reinvocation is needed.
	add := func(entry, value string) []m {
		return []m{{"patchType": "JSONPatch",
			"jsonPatch": m{"expression": fmt.Sprintf("[JSONPatch{op: 'add', path: '/data/%s', value: %s}]",
				entry, value)}}}
	}
	on := m{"resourceRules": []m{rule("", "configmaps", "CREATE")}}
	s.mutating("1-count", m{"matchConstraints": on, "reinvocationPolicy": "IfNeeded",
		"mutations": add("count", "string(size(object.data))")}, m{})
	s.mutating("2-once", m{"matchConstraints": on, "reinvocationPolicy": "Never",
		"mutations": add("once", "string(size(object.data))")}, m{})
	s.mutating("3-more", m{"matchConstraints": on, "mutations": add("more", "'1'")}, m{})
	data := s.create(configMapsURL, settings("c", m{"a": "1"})).at("data").(m)
	require.Equal(t, m{"a": "1", "count": "4", "once": "2", "more": "1"}, data)

	// The result is validated like a client's object.
	s.mutating("4-bad", m{"matchConstraints": on, "mutations": add("b", "'x'"),
		"matchConditions": []m{{"name": "c", "expression": "object.metadata.name == 'bad'"}}}, m{})
	s.validating("judge", policyOn(rule("", "configmaps", "CREATE"), "!('b' in object.data)"), m{})
	require.Equal(t, 422, s.do(http.MethodPost, configMapsURL, settings("bad", m{"a": "1"})).code)

	for _, c := range []struct{ name, patch, says string }{
		{"unknown", "Object{spec: Object.spec{unheard: 1}}", ".spec.unheard: field not declared in schema"},
		{"atomic", "Object{spec: Object.spec{accessModes: ['ReadWriteOnce']}}",
			"may not mutate atomic arrays, maps or structs: .spec.accessModes"},
		{"names", "Object{spec: Object.status{}}", `unexpected type name "Object.status", expected "Object.spec"`},
	} {
		s.mutating(c.name, m{"matchConstraints": m{"resourceRules": []m{rule("", "persistentvolumeclaims", "CREATE")}},
			"mutations": []m{{"patchType": "ApplyConfiguration", "applyConfiguration": m{"expression": c.patch}}}}, m{})
		a := s.do(http.MethodPost, claims, claimOf("data"))
		require.Equal(t, 403, a.code, "%s", a.body)
		require.Equal(t, "Invalid", a.at("reason"))
		require.Contains(t, a.at("message"), fmt.Sprintf("policy '%s' with binding '%[1]s-b' denied request: ", c.name))
		require.Contains(t, a.at("message"), c.says)
		s.do(http.MethodDelete, mutateBinds+"/"+c.name+"-b", nil).ok(200)
	}
}

// The library panics on this patch.
func TestMutatingPolicy_APatchThatPanicsIsRejected(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.mutating("odd", m{"matchConstraints": m{"resourceRules": []m{rule("", "configmaps", "CREATE")}}, "mutations": []m{
		{"patchType": "JSONPatch", "jsonPatch": m{"expression": "[JSONPatch{op: 'test', path: ''}]"}}}}, m{})
	a := s.do(http.MethodPost, configMapsURL, settings("c", m{}))
	require.Equal(t, http.StatusForbidden, a.code, "%s", a.body)
	require.Contains(t, a.at("message"), "policy 'odd' with binding 'odd-b' denied request: JSON Patch: ")
}

func TestPolicies_DoNotMatchPolicies(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.validating("nothing",
		policyOn(m{"apiGroups": []string{"*"}, "apiVersions": []string{"*"}, "resources": []string{"*/*"},
			"operations": []string{"*"}}, "false"), m{})
	require.Equal(t, 422, s.do(http.MethodPost, configMapsURL, settings("c", m{})).code)
	s.do(http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		m{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
			"spec": m{"resourceAttributes": m{"verb": "get", "resource": "pods"}}}).ok(201)
	s.do(http.MethodDelete, policiesPath+"/nothing", nil).ok(200)
	s.create(configMapsURL, settings("c", m{}))
}

func TestPolicies_CompileWhenWritten(t *testing.T) {
	t.Parallel()
	s := start(t)
	spec := policyOn(rule("", "pods", "CREATE"), "object.spec.x ==")
	spec["failurePolicy"] = "Fail"
	a := s.do(http.MethodPost, policiesPath, m{"apiVersion": "admissionregistration.k8s.io/v1",
		"kind": "ValidatingAdmissionPolicy", "metadata": m{"name": "p"}, "spec": spec})
	require.Equal(t, 422, a.code)
	cause := a.at("details", "causes").([]any)[0].(m)
	require.Equal(t, "spec.validations[0].expression", cause["field"])
	require.Equal(t, "FieldValueInvalid", cause["reason"])
	require.True(t, strings.HasPrefix(cause["message"].(string),
		`Invalid value: "object.spec.x ==": compilation failed: ERROR: <input>:1:17: Syntax error:`), cause["message"])
}
