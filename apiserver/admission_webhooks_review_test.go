package apiserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWebhooks_SeeTheRequest checks the review that a webhook receives for each verb.
func TestWebhooks_SeeTheRequest(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.create("/api/v1/namespaces/default/serviceaccounts", metaOnly("v1", "ServiceAccount", "default", nil))
	h.create(deployments, deployment("web", 1))
	h.create(pods, pod("p"))
	both := rules(everything)
	h.mutates("m", h.hook("m.example.com", both))
	h.validates("v", h.hook("v.example.com", both))
	gvk := func(group, version, kind string) m { return m{"group": group, "version": version, "kind": kind} }
	cm := gvk("", "v1", "ConfigMap")
	for _, c := range []struct {
		name, method, path string
		body               m
		media              string
		want               m // members of the request; a dot separates nested members
	}{
		{"create", "POST", configMaps + "?fieldManager=me&dryRun=All", settings("c", nil), "", m{
			"operation": "CREATE", "name": "c", "namespace": "default", "kind": cm, "requestKind": cm, "dryRun": true,
			"resource": m{"group": "", "version": "v1", "resource": "configmaps"}, "subResource": nil, "oldObject": nil,
			"options": m{"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": []any{"All"},
				"fieldManager": "me"},
			"object.kind": "ConfigMap", "object.apiVersion": "v1", "userInfo.username": "kubernetes-admin"}},
		{"generate", "POST", configMaps, m{"metadata": m{"generateName": "g-"}}, "", m{"operation": "CREATE", "name": nil,
			"object.metadata.generateName": "g-"}},
		{"create c", "POST", configMaps, settings("c", nil), "", m{"dryRun": false}},
		{"update", "PUT", configMaps + "/c", settings("c", m{"a": "b"}), "", m{"operation": "UPDATE", "name": "c",
			"options.kind": "UpdateOptions", "object.data": m{"a": "b"}, "oldObject.data": nil,
			"oldObject.kind": "ConfigMap"}},
		{"patch", "PATCH", configMaps + "/c", m{"data": m{"a": "c"}}, mergePatch, m{"operation": "UPDATE",
			"options.kind": "PatchOptions", "object.data": m{"a": "c"}, "oldObject.data": m{"a": "b"}}},
		{"apply", "PATCH", configMaps + "/c?fieldManager=x&force=true", settings("c", m{"z": "y"}), applyPatch, m{
			"operation": "UPDATE", "options": m{"kind": "PatchOptions", "apiVersion": "meta.k8s.io/v1", "force": true,
				"fieldManager": "x"}, "object.data": m{"a": "c", "z": "y"}}},
		{"apply new", "PATCH", configMaps + "/d?fieldManager=x", settings("d", nil), applyPatch, m{"operation": "CREATE",
			"name": "d", "options": m{"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "x"}}},
		{"delete", "DELETE", configMaps + "/c", m{"gracePeriodSeconds": 0, "propagationPolicy": "Background"}, "", m{
			"operation": "DELETE", "name": "c", "object": nil, "oldObject.data": m{"a": "c", "z": "y"},
			"options": m{"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "gracePeriodSeconds": 0.0,
				"propagationPolicy": "Background"}}},
		{"delete all", "DELETE", configMaps + "?fieldSelector=metadata.name%3Dd", nil, "", m{"operation": "DELETE",
			"name": nil, "namespace": "default", "oldObject.metadata.name": "d", "options.kind": "DeleteOptions"}},
		{"scale", "PATCH", deployments + "/web/scale", m{"spec": m{"replicas": 3}}, mergePatch, m{"operation": "UPDATE",
			"subResource": "scale", "requestSubResource": "scale", "kind": gvk("autoscaling", "v1", "Scale"),
			"resource":           m{"group": "apps", "version": "v1", "resource": "deployments"},
			"object.kind":        "Scale",
			"object.spec":        m{"replicas": 3.0},
			"oldObject.spec":     m{"replicas": 1.0},
			"object.apiVersion":  "autoscaling/v1",
			"requestKind.kind":   "Scale",
			"oldObject.metadata": anything, "name": "web"}},
		{"status", "PATCH", deployments + "/web/status", m{"status": m{"observedGeneration": 1}}, mergePatch, m{
			"subResource": "status", "kind": gvk("apps", "v1", "Deployment"), "object.status.observedGeneration": 1.0}},
		{"exec", "POST", pods + "/p/exec?command=ls&stdout=true&container=main", nil, "", m{"operation": "CONNECT",
			"subResource": "exec", "kind": gvk("", "v1", "PodExecOptions"), "options": nil, "oldObject": nil,
			"object": m{"kind": "PodExecOptions", "apiVersion": "v1", "command": []any{"ls"}, "stdout": true,
				"container": "main"}}},
		{"token", "POST", "/api/v1/namespaces/default/serviceaccounts/default/token",
			m{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": m{}}, "", m{"operation": "CREATE",
				"subResource": "token", "kind": gvk("authentication.k8s.io", "v1", "TokenRequest"), "name": "default"}},
		{"namespace", "POST", namespaces, metaOnly("v1", "Namespace", "n", nil), "", m{"namespace": "n", "name": "n"}},
		{"evict", "POST", pods + "/p/eviction", m{"apiVersion": "policy/v1", "kind": "Eviction",
			"metadata": m{"name": "p"}}, "", m{"operation": "CREATE", "subResource": "eviction", "name": "p",
			"kind": gvk("policy", "v1", "Eviction")}},
	} {
		var body any
		if c.body != nil {
			body = c.body
		}
		media := c.media
		if media == "" {
			media = "application/json"
		}
		a := h.do(c.method, c.path, body, "Content-Type", media)
		if c.name != "exec" {
			require.Less(t, a.code, 300, "%s: %s", c.name, a.body)
		}
		for _, name := range []string{"m.example.com", "v.example.com"} {
			review := h.once(name)
			if c.name == "create c" { // the server sets its own fields later, when it prepares the object
				require.Equal(t, name == "v.example.com", deep(review, "object.metadata.uid") != nil)
			}
			for path, want := range c.want {
				if want != anything {
					require.Equal(t, want, deep(review, path), "%s: %s of %v", c.name, path, review)
				}
			}
		}
	}
}

// anything matches every value.
var anything any = "anything"

func deep(doc m, path string) any {
	var value any = doc
	for name := range strings.SplitSeq(path, ".") {
		object, ok := value.(m)
		if !ok {
			return nil
		}
		value = object[name]
	}
	return value
}

// A webhook receives the first version of AdmissionReview in its list that this server supports.
func TestWebhooks_ReviewVersions(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	for i, c := range []struct {
		versions []string
		want     string
	}{
		{[]string{"v1"}, "admission.k8s.io/v1"}, {[]string{"v1beta1"}, "admission.k8s.io/v1beta1"},
		{[]string{"v1", "v1beta1"}, "admission.k8s.io/v1"}, {[]string{"v1beta1", "v1"}, "admission.k8s.io/v1beta1"},
		{[]string{"v7", "v1beta1"}, "admission.k8s.io/v1beta1"},
	} {
		name := fmt.Sprintf("h%d.example.com", i)
		h.mutates(name, h.hook(name, m{"admissionReviewVersions": c.versions}))
		// The older version requires no uid, and every patch is a JSON patch.
		h.on(name, respondWith(func(review m) m {
			response := m{"allowed": true, "patch": encodePatch(label(fmt.Sprint("h", i), "1"))}
			if review["apiVersion"] == "admission.k8s.io/v1" {
				response["uid"], response["patchType"] = review["request"].(m)["uid"], "JSONPatch"
			}
			return m{"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}
		}))
		labels := h.create(configMaps+"?dryRun=All", labeled("c", m{"a": "b"})).at("metadata", "labels").(m)
		require.Len(t, labels, i+2)
		h.hooks.mu.Lock()
		require.Equal(t, c.want, h.hooks.asked["/"+name][0]["apiVersion"])
		h.hooks.mu.Unlock()
	}
}

// A webhook whose rule names another version sees the object in that version. Its changes are converted back.
func TestWebhooks_AnotherVersionIsConvertedBothWays(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	for i, version := range []string{"v2", "v1", "v2"} {
		name := fmt.Sprintf("h%d.example.com", i)
		h.mutates(name, h.hook(name, rules(ruleFor("autoscaling", version, "horizontalpodautoscalers", "CREATE", ""))))
	}
	h.on("h0.example.com", respondPatch(add("/spec/metrics/0/resource/target/averageUtilization", 60)))
	h.on("h1.example.com", respondPatch(add("/spec/minReplicas", 2)))
	h.on("h2.example.com", respondPatch(add("/spec/maxReplicas", 9)))
	made := h.create(hpasV1, m{"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": m{"name": "h"},
		"spec": m{"maxReplicas": 3, "targetCPUUtilizationPercentage": 50, "scaleTargetRef": m{"kind": "Deployment",
			"name": "web", "apiVersion": "apps/v1"}}})
	require.Equal(t, 60.0, float(made.at("spec", "targetCPUUtilizationPercentage")))
	require.Equal(t, 2.0, float(made.at("spec", "minReplicas")))
	require.Equal(t, 9.0, float(made.at("spec", "maxReplicas")))
	review := h.once("h0.example.com")
	require.Equal(t, "autoscaling/v2", deep(review, "object.apiVersion"))
	require.Equal(t, "v2", deep(review, "kind.version"))
	require.Equal(t, "v1", deep(review, "requestKind.version"))
	require.Equal(t, "v1", deep(review, "requestResource.version"))
	review = h.once("h1.example.com")
	require.Equal(t, 60.0, deep(review, "object.spec.targetCPUUtilizationPercentage"))
	require.Equal(t, 2.0, deep(h.once("h2.example.com"), "object.spec.minReplicas"))
}

func float(value any) any {
	if n, ok := value.(int64); ok {
		return float64(n)
	}
	return value
}

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// A webhook's changes of a custom resource are pruned, defaulted and validated like a client's.
func TestWebhooks_CustomResources(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	schema := m{"openAPIV3Schema": m{"type": "object", "properties": m{"spec": m{"type": "object", "properties": m{
		"size": m{"type": "integer", "maximum": 9}, "color": m{"type": "string", "default": "red"}}}}}}
	h.create(definitionsPath, m{"metadata": m{"name": "valves.example.org"}, "spec": m{"group": "example.org",
		"scope": "Namespaced", "names": m{"plural": "valves", "kind": "Valve"}, "versions": []m{
			{"name": "v1", "served": true, "storage": true, "schema": schema},
			{"name": "v2", "served": true, "storage": false, "schema": schema}}}})
	const valves = "/apis/example.org/v1/namespaces/default/valves"
	require.Eventually(t, func() bool { return h.get(valves).code == 200 }, patience, tick)
	h.mutates("m", h.hook("m.example.com", rules(ruleFor("example.org", "v2", "valves", "*", ""))))
	valve := func(name string) m {
		return m{"apiVersion": "example.org/v1", "kind": "Valve", "metadata": m{"name": name}, "spec": m{"size": 1}}
	}
	h.on("m.example.com", respondPatch(add("/spec/size", 5), add("/spec/nonsense", true), add("/other", "x"),
		m{"op": "remove", "path": "/spec/color"}))
	made := h.create(valves, valve("a"))
	require.Equal(t, m{"size": int64(5), "color": "red"}, made.at("spec"))
	require.Nil(t, made.at("other"))
	review := h.once("m.example.com")
	require.Equal(t, "example.org/v2", deep(review, "object.apiVersion"))
	require.Equal(t, "red", deep(review, "object.spec.color"))
	for _, c := range []struct {
		patch  []m
		code   int
		reason string
		words  string
	}{
		{[]m{add("/spec/size", 10)}, 422, "Invalid", "spec.size: Invalid value: 10"},
		{[]m{add("/spec/size", "big")}, 422, "Invalid", `spec.size: Invalid value: "string"`},
		{[]m{{"op": "remove", "path": "/kind"}}, 500, "InternalError", "Internal error occurred: Object 'Kind' is missing in"},
		{[]m{add("/kind", "Pump")}, 500, "InternalError", "Internal error occurred: no kind"},
	} {
		h.on("m.example.com", respondPatch(c.patch...))
		a := h.do(http.MethodPost, valves, valve("b"))
		require.Equal(t, c.code, a.code, "%s", a.body)
		require.Equal(t, c.reason, a.at("reason"))
		require.Contains(t, a.at("message"), c.words)
		h.gone(valves + "/b")
	}
}

// A write of a subresource drops the changes of a webhook to other fields.
func TestWebhooks_ChangeNoMoreThanTheSubresource(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.create("/api/v1/namespaces/default/serviceaccounts", metaOnly("v1", "ServiceAccount", "default", nil))
	h.create(deployments, deployment("web", 1))
	h.mutates("m", h.hook("m.example.com", rules(everything)))
	h.on("m.example.com", respondPatch(add("/spec/replicas", 7), add("/status/observedGeneration", 5)))
	got := h.patch(deployments+"/web/status", mergePatch, m{"status": m{"replicas": 1}}).ok(200)
	require.Equal(t, int64(1), got.at("spec", "replicas"))
	require.Equal(t, int64(5), got.at("status", "observedGeneration"))
	got = h.patch(deployments+"/web", mergePatch, m{"metadata": m{"labels": m{"a": "b"}}}).ok(200)
	require.Equal(t, int64(7), got.at("spec", "replicas"))
	h.on("m.example.com", respondPatch(add("/spec/replicas", 4)))
	h.patch(deployments+"/web/scale", mergePatch, m{"spec": m{"replicas": 2}}).ok(200)
	require.Equal(t, int64(4), h.get(deployments+"/web").at("spec", "replicas"))
	h.on("m.example.com", respondPatch(add("/spec/replicas", -1)))
	h.patch(deployments+"/web/scale", mergePatch, m{"spec": m{"replicas": 2}}).refused(422, "Invalid",
		"spec.replicas: Invalid value: -1: must be greater than or equal to 0")
	// A webhook cannot exceed the maximum lifetime of tokens.
	const token = "/api/v1/namespaces/default/serviceaccounts/default/token"
	ask := m{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": m{}}
	h.on("m.example.com", respondPatch(add("/spec/expirationSeconds", 7200)))
	require.Equal(t, int64(7200), h.do(http.MethodPost, token, ask).ok(201).at("spec", "expirationSeconds"))
	h.on("m.example.com", respondPatch(add("/spec/expirationSeconds", 1)))
	h.do(http.MethodPost, token, ask).refused(422, "Invalid", "may not specify a duration less than 10 minutes")
	h.on("m.example.com", respondPatch(m{"op": "remove", "path": "/spec/expirationSeconds"}))
	h.do(http.MethodPost, token, ask).ok(201)
	// A webhook cannot patch an object that is deleted.
	h.on("m.example.com", respondPatch(add("/metadata/labels", m{})))
	h.delete(deployments+"/web", nil).refused(500, "InternalError", `Internal error occurred: admission webhook `+
		`"m.example.com" attempted to modify the object, which is not supported for this operation`)
}

// A webhook cannot change an update into one of another object.
func TestWebhooks_KeepTheIdentityOfAnUpdate(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	before := h.create(configMaps, settings("c", m{"a": "b"}))
	h.mutates("m", h.hook("m.example.com", nil))
	for _, c := range []struct {
		field string
		value any
		code  int
		words string
	}{
		{"name", "other", 422, "metadata.name: Invalid value"},
		{"namespace", "kube-system", 400, "does not match the namespace sent on the request"},
		{"uid", "other", 409, "Precondition failed: UID in precondition: other"},
		{"generation", 99, 200, ""}, {"creationTimestamp", "2020-01-01T00:00:00Z", 200, ""},
		{"deletionTimestamp", "2020-01-01T00:00:00Z", 200, ""},
	} {
		h.on("m.example.com", respondPatch(add("/metadata/"+c.field, c.value)))
		a := h.patch(configMaps+"/c", mergePatch, m{"data": m{"a": c.field}})
		require.Equal(t, c.code, a.code, "%s: %s", c.field, a.body)
		if c.words != "" {
			require.Contains(t, a.at("message"), c.words)
		}
		after := h.get(configMaps + "/c")
		for _, field := range []string{"uid", "generation", "creationTimestamp", "deletionTimestamp"} {
			require.Equal(t, before.at("metadata", field), after.at("metadata", field), c.field)
		}
	}
}

// A stream is opened with the options that a webhook has changed.
func TestWebhooks_ChangeTheOptionsOfAConnect(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.create(pods, pod("p"))
	h.mutates("m", h.hook("m.example.com", rules(ruleFor("", "v1", "pods/exec", "CONNECT", ""))))
	h.on("m.example.com", respondPatch(add("/container", "nope"), add("/command", []string{"true"})))
	h.do(http.MethodPost, pods+"/p/exec?command=ls&stdout=true&container=main", nil).refused(400, "BadRequest",
		"container nope is not valid for pod p")
	h.on("m.example.com", respondPatch(add("/kind", "PodAttachOptions")))
	h.do(http.MethodPost, pods+"/p/exec?command=ls&stdout=true&container=main", nil).refused(500, "InternalError", "no kind")
}
