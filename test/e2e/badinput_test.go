//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// requireStatus requires that the answer is a metav1.Status with these fields.
func requireStatus(t *testing.T, body string, code int, reason metav1.StatusReason, message string) {
	t.Helper()
	var status metav1.Status
	require.NoError(t, json.Unmarshal([]byte(body), &status), "not a Status: %s", tail(body, 500))
	require.Equal(t, "Status", status.Kind, body)
	require.Equal(t, metav1.StatusFailure, status.Status, body)
	require.EqualValues(t, code, status.Code, body)
	require.Equal(t, reason, status.Reason, body)
	require.Contains(t, status.Message, message)
}

const (
	asJSON       = "application/json"
	asYAML       = "application/yaml"
	configMaps   = "/api/v1/namespaces/default/configmaps"
	pods         = "/api/v1/namespaces/default/pods"
	deployments  = "/apis/apps/v1/namespaces/default/deployments"
	aConfigMap   = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`
	aPod         = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	strictly     = "?fieldValidation=Strict"
	tenMegabytes = 10 << 20
)

var badInput = []struct {
	name, method, path, contentType, body string
	code                                  int
	reason                                metav1.StatusReason
	message                               string
}{
	{"malformed JSON", "POST", configMaps, asJSON, `{"apiVersion":"v1","kind":`, 400, metav1.StatusReasonBadRequest,
		""},
	{"malformed YAML", "POST", configMaps, asYAML, "apiVersion: v1\n  kind: ConfigMap\n\t- x", 400,
		metav1.StatusReasonBadRequest, ""},
	{"not an object", "POST", configMaps, asJSON, `[1,2,3]`, 400, metav1.StatusReasonBadRequest, ""},
	{"nothing", "POST", configMaps, asJSON, ``, 400, metav1.StatusReasonBadRequest, ""},
	{"a wrong type", "POST", deployments, asJSON,
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"},"spec":{"replicas":"many"}}`, 400,
		metav1.StatusReasonBadRequest, ""},
	{"unknown kind", "POST", configMaps, asJSON, `{"apiVersion":"v1","kind":"Boat","metadata":{"name":"x"}}`, 400,
		metav1.StatusReasonBadRequest, "Boat"},
	{"another kind", "POST", configMaps, asJSON, aPod, 400, metav1.StatusReasonBadRequest, "ConfigMap"},
	{"unknown resource", "POST", "/api/v1/namespaces/default/boats", asJSON, aConfigMap, 404,
		metav1.StatusReasonNotFound, "could not find the requested resource"},
	{"unknown group", "GET", "/apis/boats.example/v1/boats", "", "", 404, metav1.StatusReasonNotFound,
		"could not find the requested resource"},
	{"unknown field", "POST", configMaps + strictly, asJSON,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"datum":{}}`, 400, metav1.StatusReasonBadRequest,
		`unknown field "datum"`},
	{"unknown field within", "POST", pods + strictly, asJSON,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i","imagee":"j"}]}}`, 400, metav1.StatusReasonBadRequest, `unknown field "spec.containers[0].imagee"`},
	{"a field twice", "POST", configMaps + strictly, asJSON,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","name":"y"}}`, 400, metav1.StatusReasonBadRequest,
		`duplicate field "metadata.name"`},
	{"another namespace", "POST", configMaps, asJSON,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"other"}}`, 400,
		metav1.StatusReasonBadRequest, "namespace"},
	{"no such namespace", "POST", "/api/v1/namespaces/nowhere/configmaps", asJSON, aConfigMap, 404,
		metav1.StatusReasonNotFound, `namespaces "nowhere" not found`},
	{"another name", "PUT", configMaps + "/y", asJSON, aConfigMap, 400, metav1.StatusReasonBadRequest, "name"},
	{"no name", "POST", configMaps, asJSON, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}`, 422,
		metav1.StatusReasonInvalid, "metadata.name"},
	{"invalid name", "POST", configMaps, asJSON,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"Bad_Name"}}`, 422, metav1.StatusReasonInvalid,
		"metadata.name"},
	{"a path as name", "POST", configMaps, asJSON,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"../../etc"}}`, 422, metav1.StatusReasonInvalid,
		"metadata.name"},
	{"invalid label", "POST", configMaps, asJSON,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","labels":{"a b":"c"}}}`, 422,
		metav1.StatusReasonInvalid, "metadata.labels"},
	{"no containers", "POST", pods, asJSON, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{}}`, 422,
		metav1.StatusReasonInvalid, "spec.containers: Required value"},
	{"a selector that misses", "POST", deployments, asJSON,
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"c"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, 422, metav1.StatusReasonInvalid, "spec.template.metadata.labels"},
	{"an invalid selector operator", "POST", deployments, asJSON,
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"},"spec":{"selector":{"matchExpressions":[{"key":"a","operator":"Near","values":["b"]}]},"template":{"metadata":{"labels":{"a":"c"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, 422, metav1.StatusReasonInvalid, "spec.selector.matchExpressions[0].operator"},
	{"malformed label selector", "GET", pods + "?labelSelector=a+in+(", "", "", 400, metav1.StatusReasonBadRequest, ""},
	{"malformed label selector, watching", "GET", pods + "?watch=1&labelSelector=a+in+(", "", "", 400,
		metav1.StatusReasonBadRequest, ""},
	{"malformed label selector, deleting", "DELETE", pods + "?labelSelector=a+in+(", "", "", 400,
		metav1.StatusReasonBadRequest, ""},
	{"malformed field selector", "GET", pods + "?fieldSelector=a", "", "", 400, metav1.StatusReasonBadRequest, ""},
	{"a field that cannot select", "GET", pods + "?fieldSelector=spec.color%3Dred", "", "", 400,
		metav1.StatusReasonBadRequest, "spec.color"},
	{"malformed resourceVersion", "GET", pods + "?resourceVersion=new", "", "", 400, metav1.StatusReasonBadRequest,
		"resourceVersion"},
	{"malformed limit", "GET", pods + "?limit=few", "", "", 400, metav1.StatusReasonBadRequest, ""},
	{"malformed continue token", "GET", pods + "?limit=1&continue=more", "", "", 400, metav1.StatusReasonBadRequest,
		"continue"},
	{"a stale resourceVersion", "PUT", configMaps + "/kept", asJSON,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"kept","resourceVersion":"1"},"data":{"a":"changed"}}`, 409, metav1.StatusReasonConflict, "the object has been modified"},
	{"a stale resourceVersion in a patch", "PATCH", configMaps + "/kept", "application/merge-patch+json",
		`{"metadata":{"resourceVersion":"1"},"data":{"a":"changed"}}`, 409, metav1.StatusReasonConflict,
		"the object has been modified"},
	{"a stale resourceVersion in a delete", "DELETE", configMaps + "/kept", asJSON,
		`{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":"1"}}`, 409,
		metav1.StatusReasonConflict, "ResourceVersion"},
	{"a resourceVersion on create", "POST", configMaps, asJSON,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","resourceVersion":"1"}}`, 400,
		metav1.StatusReasonBadRequest, "resourceVersion should not be set on objects to be created"},
	{"twice the same", "POST", configMaps, asJSON, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"kept"}}`,
		409, metav1.StatusReasonAlreadyExists, `"kept" already exists`},
	{"not there", "GET", configMaps + "/x", "", "", 404, metav1.StatusReasonNotFound, `configmaps "x" not found`},
	{"a malformed JSON patch", "PATCH", configMaps + "/kept", "application/json-patch+json", `[{"op":"move"`, 400,
		metav1.StatusReasonBadRequest, ""},
	{"a JSON patch that cannot be", "PATCH", configMaps + "/kept", "application/json-patch+json",
		`[{"op":"test","path":"/data/a","value":"other"}]`, 422, metav1.StatusReasonInvalid, ""},
	{"an unknown kind of patch", "PATCH", configMaps + "/kept", "text/plain", `data`, 415,
		metav1.StatusReasonUnsupportedMediaType, ""},
	{"an unknown media type", "POST", configMaps, "text/plain", aConfigMap, 415,
		metav1.StatusReasonUnsupportedMediaType, ""},
	{"an unknown method", "POST", configMaps + "/kept", asJSON, aConfigMap, 405, metav1.StatusReasonMethodNotAllowed,
		""},
	{"ten megabytes", "POST", configMaps, asJSON,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"a":"` +
			strings.Repeat("a", tenMegabytes) + `"}}`, 413, metav1.StatusReasonRequestEntityTooLarge, ""},
	{"ten megabytes of YAML", "POST", configMaps, asYAML, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " +
		"x}\ndata:\n  a: " + strings.Repeat("a", tenMegabytes) + "\n", 413, metav1.StatusReasonRequestEntityTooLarge,
		""},
	{"ten megabytes of patch", "PATCH", configMaps + "/kept", "application/merge-patch+json", `{"data":{"b":"` +
		strings.Repeat("a", tenMegabytes) + `"}}`, 413, metav1.StatusReasonRequestEntityTooLarge, ""},
	{"more than a ConfigMap holds", "POST", configMaps, asJSON,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"a":"` + strings.Repeat("a", 2<<20) +
			`"}}`, 422, metav1.StatusReasonInvalid, "Too long"},
	{"brackets without end", "POST", configMaps, asJSON, strings.Repeat(`{"a":`, 100_000), 400,
		metav1.StatusReasonBadRequest, ""},
	{"YAML that grows", "POST", configMaps, asYAML, billionLaughs, 400, metav1.StatusReasonBadRequest, ""},
}

// billionLaughs is a short YAML document that would expand to a huge one if its aliases were resolved.
const billionLaughs = `
apiVersion: v1
kind: ConfigMap
a: &a ["x","x","x","x","x","x","x","x","x"]
b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]
c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]
d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]
e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]
f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]
g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]
h: &h [*g,*g,*g,*g,*g,*g,*g,*g,*g]
`

func TestBadInput_IsRejectedAndNotStored(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t), "--nodes", "0")
	code, body := c.do("POST", configMaps, asJSON,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"kept"},"data":{"a":"b"}}`))
	require.Equal(t, http.StatusCreated, code, body)
	// Wait until the controllers have created their objects in each namespace, before comparing.
	require.Eventually(t, func() bool {
		return strings.Contains(c.everything(), "kube-root-ca.crt")
	}, time.Minute, 50*time.Millisecond)
	before := c.everything()

	for _, input := range badInput {
		code, body := c.do(input.method, input.path, input.contentType, []byte(input.body))
		t.Run(input.name, func(t *testing.T) {
			require.Equal(t, input.code, code, tail(body, 500))
			requireStatus(t, body, input.code, input.reason, input.message)
		})
	}

	require.Equal(t, before, c.everything(), "the stored objects")
	code, body = c.do("POST", configMaps, asJSON, []byte(aConfigMap))
	require.Equal(t, http.StatusCreated, code, body)
}

// everything returns all objects of the default namespace that the tests here could have changed.
func (c *cluster) everything() string {
	c.t.Helper()
	return c.run(kubectlLite, "get", "configmaps,pods,deployments,replicasets", "-n", "default", "-o", "yaml")
}
