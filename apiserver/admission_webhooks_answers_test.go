package apiserver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	both = iota
	onlyMutating
	onlyValidating
)

// raw returns a handler that answers with these bytes.
func raw(code int, media, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if media != "" {
			w.Header().Set("Content-Type", media)
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}

// reviewWith returns a handler that answers with a review that has only the given members.
func reviewWith(review m) http.HandlerFunc { return respondWith(func(m) m { return review }) }

// spoiled returns a handler whose answer is a good one with these changes; a member that is nil is removed.
func spoiled(changes m) http.HandlerFunc {
	return respondWith(func(review m) m {
		answer := m{"apiVersion": review["apiVersion"], "kind": "AdmissionReview",
			"response": m{"uid": review["request"].(m)["uid"], "allowed": true}}
		for key, value := range changes {
			if answer[key] = value; value == nil {
				delete(answer, key)
			}
		}
		return answer
	})
}

func patchOf(text string) m {
	return m{"allowed": true, "patchType": "JSONPatch", "patch": base64.StdEncoding.EncodeToString([]byte(text))}
}

// cut cuts the connection after half an answer.
func cut(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	_, _ = w.Write([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","resp`))
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// hang waits until the client disconnects. trickle begins an answer first, which must not look complete then.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func trickle(w http.ResponseWriter, r *http.Request) {
	_, _ = w.Write([]byte(`{"kind":`))
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

const calling = "Internal error occurred: failed calling webhook %q: "

// badAnswers are unusable answers: the request fails with 500 and these words, or the failure is ignored.
var badAnswers = []struct {
	name   string
	answer http.HandlerFunc
	words  string // after calling
	only   int
}{
	{"not JSON", raw(200, "application/json", "nope"),
		"failed to call webhook: couldn't get version/kind; json parse error: ", both},
	{"half JSON", raw(200, "application/json", `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","respon`),
		"failed to call webhook: couldn't get version/kind; json parse error: unexpected end of JSON input", both},
	{"a list", raw(200, "application/json", `[]`), "failed to call webhook: couldn't get version/kind; json parse error: ",
		both},
	{"empty", raw(200, "application/json", ""),
		"failed to call webhook: 0-length response with status code: 200 and content type: application/json", both},
	{"no content", raw(204, "", ""), "failed to call webhook: 0-length response with status code: 204 and content type: ",
		both},
	{"an empty object", raw(200, "application/json", "{}"),
		"received invalid webhook response: webhook response was absent", both},
	{"500 with text", raw(500, "text/plain", "boom"),
		`failed to call webhook: an error on the server ("boom") has prevented the request from succeeding`, both},
	{"500 with JSON", raw(500, "application/json", "{}"),
		`failed to call webhook: an error on the server ("unknown") has prevented the request from succeeding`, both},
	{"500 with a Status", raw(500, "application/json",
		`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"sad","code":500}`), "failed to call webhook: sad",
		both},
	{"503", raw(503, "text/plain", "later"),
		"failed to call webhook: the server is currently unable to handle the request", both},
	{"404", raw(404, "text/plain", "?"), "failed to call webhook: the server could not find the requested resource", both},
	{"405", raw(405, "text/plain", "?"),
		"failed to call webhook: the server does not allow this method on the requested resource", both},
	{"401", raw(401, "text/plain", "?"),
		"failed to call webhook: the server has asked for the client to provide credentials", both},
	{"302", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://localhost/x", http.StatusFound)
	},
		"failed to call webhook: the server responded with the status code 302 but did not return more information", both},
	{"307", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/other", http.StatusTemporaryRedirect)
	},
		"failed to call webhook: the server responded with the status code 307 but did not return more information", both},
	{"10 MB", raw(200, "application/json", `{"response":"`+strings.Repeat("x", 10<<20)+`"}`),
		"failed to call webhook: the answer is too large: more than 8388608 bytes", both},
	{"deep", raw(200, "application/json", strings.Repeat(`{"a":`, 600)+"1"+strings.Repeat("}", 600)),
		"failed to call webhook: the body is nested more than 500 levels deep", both},
	{"cut", cut, "failed to call webhook: unexpected error when reading response body. Please retry. Original error: unexpected EOF", both},
	{"another uid", respond(m{"uid": "another", "allowed": true}),
		`received invalid webhook response: expected response.uid="`, both},
	{"no uid", respond(m{"uid": "", "allowed": true}), `received invalid webhook response: expected response.uid="`, both},
	{"no response", spoiled(m{"response": nil}), "received invalid webhook response: webhook response was absent", both},
	{"no kind", spoiled(m{"kind": nil, "apiVersion": nil}), "received invalid webhook response: expected webhook response " +
		"of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=", both},
	{"another kind", spoiled(m{"kind": "Pod", "apiVersion": "v1"}),
		`failed to call webhook: no kind "Pod" is registered for version "v1" in scheme`, both},
	{"another version", spoiled(m{"apiVersion": "admission.k8s.io/v1beta1"}),
		"failed to call webhook: converting (v1beta1.AdmissionReview) to (v1.AdmissionReview): unknown conversion", both},
	{"an unknown version", spoiled(m{"apiVersion": "admission.k8s.io/v7"}),
		`failed to call webhook: no kind "AdmissionReview" is registered for version "admission.k8s.io/v7" in scheme`, both},
	{"a success", reviewWith(m{"kind": "Status", "apiVersion": "v1", "status": "Success"}),
		"failed to call webhook: converting (v1.Status) to (v1.AdmissionReview): unknown conversion", both},
	{"a failure", reviewWith(m{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "sad", "code": 409}),
		"failed to call webhook: converting (v1.Status) to (v1.AdmissionReview): unknown conversion", both},
	{"a list as response", spoiled(m{"response": []any{}}), "failed to call webhook: ", both},
	{"a word as allowed", spoiled(m{"response": m{"allowed": "yes"}}), "failed to call webhook: ", both},
	{"no base64", respond(m{"allowed": true, "patchType": "JSONPatch", "patch": "?!"}),
		"failed to call webhook: illegal base64 data at input byte 0", both},
	{"a patch without a type", respond(m{"allowed": true, "patch": encodePatch(add("/data", m{}))}),
		"received invalid webhook response: webhook returned response.patch but not response.patchType", onlyMutating},
	{"a type without a patch", respond(m{"allowed": true, "patchType": "JSONPatch"}),
		"received invalid webhook response: webhook returned response.patchType but not response.patch", onlyMutating},
	{"an empty type", respond(m{"allowed": true, "patchType": "", "patch": encodePatch(add("/data", m{}))}),
		`received invalid webhook response: webhook returned invalid response.patchType of ""`, onlyMutating},
	{"an unknown type", respond(m{"allowed": true, "patchType": "Merge", "patch": encodePatch(add("/data", m{}))}),
		`unsupported patch type "Merge"`, onlyMutating},
	{"no patch in it", respond(patchOf("nope")),
		"received undecodable patch in webhook response: invalid character 'o' in literal null", onlyMutating},
	{"an object as patch", respond(patchOf("{}")),
		"received undecodable patch in webhook response: json: cannot unmarshal object into Go value of type", onlyMutating},
	{"many operations", respond(patchOf("[" + strings.Repeat(`{"op":"test","path":"/kind","value":"x"},`, 10_000) +
		`{"op":"test","path":"/kind","value":"x"}]`)), "received undecodable patch in webhook response: the allowed maximum " +
		"operations in a JSON patch is 10000, got 10001", onlyMutating},
	{"a patch", respondPatch(add("/data", m{})),
		"received invalid webhook response: validating webhook may not return response.patch", onlyValidating},
	{"a patch type", respond(m{"allowed": true, "patchType": "JSONPatch"}),
		"received invalid webhook response: validating webhook may not return response.patchType", onlyValidating},
}

// badPatches are patches that cannot be applied. The failurePolicy does not apply: the request always fails.
var badPatches = []struct {
	name, patch string
	code        int
	reason      metav1.StatusReason
	words       string
}{
	{"test", `[{"op":"test","path":"/metadata/name","value":"other"}]`, 500, "InternalError", "Internal error occurred: "},
	{"no such path", `[{"op":"add","path":"/a/b","value":1}]`, 500, "InternalError", "Internal error occurred: "},
	{"no such member", `[{"op":"remove","path":"/spec"}]`, 500, "InternalError", "Internal error occurred: "},
	{"a far index", `[{"op":"add","path":"/metadata/finalizers","value":[]},
		{"op":"add","path":"/metadata/finalizers/1000000000","value":"x"}]`, 500, "InternalError", "Internal error occurred: "},
	{"replaces at a far index", `[{"op":"add","path":"/metadata/finalizers","value":[]},
		{"op":"replace","path":"/metadata/finalizers/1000000000","value":"x"}]`, 500, "InternalError",
		"Internal error occurred: "},
	{"an unknown operation", `[{"op":"burn","path":"/data"}]`, 500, "InternalError", "Internal error occurred: "},
	{"no value", `[{"op":"test","path":""}]`, 500, "InternalError", "Internal error occurred: "},
	{"a number as data", `[{"op":"add","path":"/data","value":7}]`, 500, "InternalError", "Internal error occurred: "},
	{"a number as label", `[{"op":"add","path":"/metadata/labels/n","value":7}]`, 500, "InternalError",
		"Internal error occurred: "},
	{"everything", `[{"op":"replace","path":"","value":[]}]`, 500, "InternalError", "Internal error occurred: "},
	{"another kind", `[{"op":"replace","path":"/kind","value":"Secret"}]`, 500, "InternalError",
		"Internal error occurred: no kind"},
	{"an unknown kind", `[{"op":"replace","path":"/apiVersion","value":"v7"}]`, 500, "InternalError",
		`Internal error occurred: no kind "ConfigMap" is registered for version "v7"`},
	{"doubling", `[{"op":"add","path":"/data","value":{"a":"` + strings.Repeat("x", 1000) + `"}}` +
		strings.Repeat(`,{"op":"copy","from":"/data/a","path":"/data/b"},{"op":"copy","from":"/data","path":"/data/c"}`, 20) +
		`]`, 500, "InternalError", "Internal error occurred: "},
	{"no metadata", `[{"op":"remove","path":"/metadata"}]`, 422, "Invalid",
		"metadata.name: Required value: name or generateName is required"},
	{"no name", `[{"op":"remove","path":"/metadata/name"}]`, 422, "Invalid",
		"metadata.name: Required value: name or generateName is required"},
	{"a bad name", `[{"op":"replace","path":"/metadata/name","value":"A B"}]`, 422, "Invalid", "metadata.name: Invalid value"},
	{"another namespace", `[{"op":"replace","path":"/metadata/namespace","value":"kube-system"}]`, 400, "BadRequest",
		"the namespace of the provided object does not match the namespace sent on the request"},
	{"a bad label", `[{"op":"add","path":"/metadata/labels/n","value":"?"}]`, 422, "Invalid", "metadata.labels: Invalid value"},
	{"a bad key", `[{"op":"add","path":"/data","value":{"?":"x"}}]`, 422, "Invalid", "data[?]: Invalid value"},
	{"a revision", `[{"op":"add","path":"/metadata/resourceVersion","value":"7"}]`, 400, "BadRequest",
		"resourceVersion should not be set on objects to be created"},
}

// goodPatches are patches that webhooks may return, and their effects.
var goodPatches = []struct {
	name, patch string
	path        []string // in the stored object
	value       any
}{
	{"nothing", `[]`, []string{"data"}, m{"a": "b"}},
	{"an unknown field", `[{"op":"add","path":"/nonsense","value":7}]`, []string{"nonsense"}, nil},
	{"data", `[{"op":"replace","path":"/data/a","value":"c"}]`, []string{"data"}, m{"a": "c"}},
	{"no kind", `[{"op":"remove","path":"/kind"},{"op":"remove","path":"/apiVersion"}]`, []string{"kind"}, "ConfigMap"},
	{"no namespace", `[{"op":"remove","path":"/metadata/namespace"}]`, []string{"metadata", "namespace"}, "default"},
	{"a generation", `[{"op":"add","path":"/metadata/generation","value":7}]`, []string{"metadata", "generation"}, nil},
	{"a deletion", `[{"op":"add","path":"/metadata/deletionTimestamp","value":"2020-01-01T00:00:00Z"}]`,
		[]string{"metadata", "deletionTimestamp"}, nil},
	{"a link", `[{"op":"add","path":"/metadata/selfLink","value":"/x"}]`, []string{"metadata", "selfLink"}, nil},
	{"immutable", `[{"op":"add","path":"/immutable","value":true}]`, []string{"immutable"}, true},
	{"a finalizer", `[{"op":"add","path":"/metadata/finalizers","value":["example.com/x"]}]`,
		[]string{"metadata", "finalizers"}, []any{"example.com/x"}},
	{"no owners", `[{"op":"remove","path":"/metadata/managedFields"}]`, []string{"metadata", "managedFields"}, nil},
}

// refusals are rejecting answers of a webhook, and the answers to the client.
var refusals = []struct {
	name   string
	status any
	code   int
	reason metav1.StatusReason
	words  string
}{
	{"nothing", nil, 400, "", " without explanation"},
	{"an empty status", m{}, 400, "", " without explanation"},
	{"a message", m{"message": "no"}, 400, "", ": no"},
	{"a reason", m{"reason": "Forbidden"}, 400, "Forbidden", ": Forbidden"},
	{"both", m{"reason": "Forbidden", "message": "no"}, 400, "Forbidden", ": no"},
	{"403", m{"code": 403, "message": "no"}, 403, "", ": no"},
	{"403 Forbidden", m{"code": 403, "reason": "Forbidden", "message": "no"}, 403, "Forbidden", ": no"},
	{"422", m{"code": 422, "reason": "Invalid"}, 422, "Invalid", ": Invalid"},
	{"429", m{"code": 429, "reason": "TooManyRequests", "message": "later"}, 429, "TooManyRequests", ": later"},
	{"500", m{"code": 500}, 500, "", " without explanation"},
	{"200", m{"code": 200, "status": "Success", "message": "fine"}, 400, "", ": fine"},
	{"999", m{"code": 999}, 999, "", " without explanation"},
	{"1000", m{"code": 1000}, 500, "", " without explanation"},
	{"0", m{"code": 0}, 400, "", " without explanation"},
	{"-1", m{"code": -1}, 400, "", " without explanation"},
	{"399", m{"code": 399}, 400, "", " without explanation"},
	{"302", m{"code": 302, "message": "there"}, 400, "", ": there"},
}

// answerCase is a webhook that matches the one ConfigMap that is labeled with its name.
type answerCase struct {
	name     string
	hook     m
	mutating bool
	answer   http.HandlerFunc
	check    func(t *testing.T, h *hooked, name string, a *answer)
}

// TestWebhooks_HandleEveryKindOfAnswer configures a webhook for each kind of answer, mutating and validating, with
// both failure policies.
func TestWebhooks_HandleEveryKindOfAnswer(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	cases := answerCases(t, h)
	require.Greater(t, len(cases), 250)
	var mutating, validating []m
	for i := range cases {
		c := &cases[i]
		c.name = fmt.Sprintf("h%d.example.com", i)
		h.on(c.name, c.answer)
		hook := h.hook(c.name, c.hook)
		hook["objectSelector"] = m{"matchLabels": m{"case": c.name}}
		if c.mutating {
			mutating = append(mutating, hook)
		} else {
			validating = append(validating, hook)
		}
	}
	h.mutates("m", mutating...)
	h.validates("v", validating...)
	var running sync.WaitGroup
	for i := range cases {
		running.Go(func() {
			c := &cases[i]
			object := settings(strings.TrimSuffix(c.name, ".example.com"), m{"a": "b"})
			object["metadata"].(m)["labels"] = m{"case": c.name}
			c.check(t, h, object["metadata"].(m)["name"].(string), h.do(http.MethodPost, configMaps, object))
		})
		if i%16 == 15 {
			running.Wait()
		}
	}
	running.Wait()
	h.create(configMaps, settings("afterwards", m{}))
}

// fails requires that the request is rejected and no object is stored.
func fails(code int, reason metav1.StatusReason, words string) func(*testing.T, *hooked, string, *answer) {
	return func(t *testing.T, h *hooked, name string, a *answer) {
		t.Helper()
		words := words
		if strings.Contains(words, "%q") {
			words = fmt.Sprintf(words, name+".example.com")
		}
		a.refused(code, reason, words)
		h.gone(configMaps + "/" + name)
	}
}

func succeeds(path []string, value any) func(*testing.T, *hooked, string, *answer) {
	return func(t *testing.T, h *hooked, name string, a *answer) {
		t.Helper()
		a.ok(201)
		require.Equal(t, value, h.get(configMaps+"/"+name).ok(200).at(path...), "%s", a.body)
	}
}

func answerCases(t *testing.T, h *hooked) []answerCase {
	t.Helper()
	var cases []answerCase
	policies := func(hook m, answer http.HandlerFunc, only int, words string) {
		for _, mutating := range []bool{true, false} {
			if only == onlyMutating && !mutating || only == onlyValidating && mutating {
				continue
			}
			for _, policy := range []string{"Fail", "Ignore"} {
				with := m{"failurePolicy": policy}
				for key, value := range hook {
					with[key] = value
				}
				c := answerCase{hook: with, mutating: mutating, answer: answer,
					check: fails(500, "InternalError", calling+strings.ReplaceAll(words, "%", "%%"))}
				if policy == "Ignore" {
					c.check = succeeds([]string{"data"}, m{"a": "b"})
				}
				cases = append(cases, c)
			}
		}
	}
	for _, c := range badAnswers {
		policies(nil, c.answer, c.only, c.words)
	}
	for _, c := range unreachable(t, h) {
		policies(c.hook, c.answer, both, c.words)
	}
	for _, c := range badPatches {
		for _, policy := range []string{"Fail", "Ignore"} {
			cases = append(cases, answerCase{hook: m{"failurePolicy": policy}, mutating: true, answer: respond(patchOf(c.patch)),
				check: fails(c.code, c.reason, c.words)})
		}
	}
	for _, c := range goodPatches {
		cases = append(cases, answerCase{mutating: true, answer: respond(patchOf(c.patch)),
			check: succeeds(c.path, c.value)})
	}
	for _, c := range refusals {
		for _, mutating := range []bool{true, false} {
			for _, policy := range []string{"Fail", "Ignore"} {
				response := m{"allowed": false}
				if c.status != nil {
					response["status"] = c.status
				}
				cases = append(cases, answerCase{hook: m{"failurePolicy": policy}, mutating: mutating, answer: respond(response),
					check: fails(c.code, c.reason, "admission webhook %q denied the request"+c.words)})
			}
		}
	}
	return cases
}

// unreachable returns webhooks that cannot be reached.
func unreachable(t *testing.T, h *hooked) []answerCaseWords {
	t.Helper()
	other := newHooks(t)
	address := func(u string, ca []byte) m { return m{"clientConfig": m{"url": u + "/x", "caBundle": ca}} }
	service := func(name string) m {
		return m{"clientConfig": m{"service": m{"namespace": "default", "name": name, "path": "/x"},
			"caBundle": h.hooks.ca.PEM()}}
	}
	h.create("/api/v1/namespaces/default/services", m{"metadata": m{"name": "empty"}, "spec": m{
		"selector": m{"a": "b"}, "ports": []m{{"port": 443}}}})
	h.create("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", m{"metadata": m{"name": "empty",
		"labels": m{"kubernetes.io/service-name": "empty"}}, "addressType": "IPv4", "endpoints": []m{}})
	h.create("/api/v1/namespaces/default/services", m{"metadata": m{"name": "other"}, "spec": m{
		"selector": m{"a": "b"}, "ports": []m{{"port": 80}}}})
	expired, wrongName := certified(t, time.Now().Add(-time.Hour), "127.0.0.1"), certified(t, time.Now().Add(time.Hour),
		"example.com")
	garbage, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var babbling sync.WaitGroup
	babbling.Go(func() {
		for {
			conn, err := garbage.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("SSH-2.0-OpenSSH_9.9\r\n"))
			_ = conn.Close()
		}
	})
	t.Cleanup(func() { _ = garbage.Close(); babbling.Wait() })
	failed := "failed to call webhook: Post "
	return []answerCaseWords{
		{address("https://"+closedPort(t), h.hooks.ca.PEM()), nil, failed + `"https://127.0.0.1:`},
		{address(h.hooks.URL, other.ca.PEM()), nil, failed + `"` + h.hooks.URL +
			`/x?timeout=10s": tls: failed to verify certificate: x509: certificate signed by unknown authority`},
		{address(h.hooks.URL, nil), nil, failed + `"` + h.hooks.URL +
			`/x?timeout=10s": tls: failed to verify certificate: x509: certificate signed by unknown authority`},
		{address(expired.url, expired.ca), nil, failed + `"` + expired.url +
			`/x?timeout=10s": tls: failed to verify certificate: x509: certificate has expired or is not yet valid: `},
		{address(wrongName.url, wrongName.ca), nil, failed + `"` + wrongName.url +
			`/x?timeout=10s": tls: failed to verify certificate: x509: `},
		{address("https://"+garbage.Addr().String(), h.hooks.ca.PEM()), nil, failed + `"https://` + garbage.Addr().String()},
		{address(h.hooks.URL, []byte("nonsense")), nil, "could not get REST client: unable to load root certificates: unable to parse " +
			"bytes as PEM block"},
		{service("none"), nil, failed + `"https://none.default.svc:443/x?timeout=10s": service "none" not found`},
		{service("empty"), nil, failed + `"https://empty.default.svc:443/x?timeout=10s": no endpoints available for ` +
			`service "empty"`},
		{service("other"), nil, failed + `"https://other.default.svc:443/x?timeout=10s": no service port 443 found for ` +
			`service "other"`},
		{m{"timeoutSeconds": 1}, hang, failed + `"` + h.hooks.URL + "/h"},
		{m{"timeoutSeconds": 1}, trickle, "failed to call webhook: unexpected error when reading " +
			"response body. Please retry. Original error: context deadline exceeded"},
	}
}

// answerCaseWords is a webhook that cannot be called, and the words for it.
type answerCaseWords struct {
	hook   m
	answer http.HandlerFunc
	words  string
}

// certifiedServer is a server with a certificate of its own.
type certifiedServer struct {
	url string
	ca  []byte
}

// certified starts a server with a certificate for a name that expires at a time.
func certified(t *testing.T, end time.Time, name string) certifiedServer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hook"},
		NotBefore: end.Add(-48 * time.Hour), NotAfter: end, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	s := newHooks(t)
	s.TLS.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	return certifiedServer{s.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}
