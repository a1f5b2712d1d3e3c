package conversion_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

const (
	// patience is how long a test waits for a server, and tick how often it polls.
	patience = time.Minute
	tick     = 5 * time.Millisecond
)

type object = map[string]any

// hook is a webhook that converts Endpoints. v1 has spec.host, spec.port and status.ready; v2 has spec.address,
// which combines host and port, and status.phase.
type hook struct {
	*httptest.Server
	ca *pki.CA

	mu      sync.Mutex
	reviews []review // received since the last call of asked
	answer  func(w http.ResponseWriter, r *http.Request, asked review)
}

// review is a ConversionReview as the webhook receives it.
type review struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Request    struct {
		UID               string   `json:"uid"`
		DesiredAPIVersion string   `json:"desiredAPIVersion"`
		Objects           []object `json:"objects"`
	} `json:"request"`
}

// newHook starts a webhook with a certificate for the names.
func newHook(t testing.TB, names ...string) *hook {
	t.Helper()
	ca, err := pki.NewCA()
	require.NoError(t, err)
	cert, err := ca.Server(append(names, "127.0.0.1")...)
	require.NoError(t, err)
	h := &hook{ca: ca}
	h.Server = httptest.NewUnstartedServer(h)
	h.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	h.Config.ErrorLog = log.New(io.Discard, "", 0) // handshake errors
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked review
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &asked)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	h.reviews = append(h.reviews, asked)
	answer := h.answer
	h.mu.Unlock()
	if answer == nil {
		answer = func(w http.ResponseWriter, _ *http.Request, asked review) { reply(w, success(asked)) }
	}
	answer(w, r, asked)
}

// answers replaces the webhook's behaviour; nil restores conversion.
func (h *hook) answers(answer func(w http.ResponseWriter, r *http.Request, asked review)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = answer
}

// replies makes the webhook apply change to valid answers.
func (h *hook) replies(change func(object)) {
	h.answers(func(w http.ResponseWriter, _ *http.Request, asked review) {
		doc := success(asked)
		change(doc)
		reply(w, doc)
	})
}

// asked returns the reviews since the last call.
func (h *hook) asked() []review {
	h.mu.Lock()
	defer h.mu.Unlock()
	reviews := h.reviews
	h.reviews = nil
	return reviews
}

func reply(w http.ResponseWriter, doc object) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(doc)
}

// success returns the answer to a review, with the objects converted.
func success(asked review) object {
	converted := make([]any, len(asked.Request.Objects))
	for i, o := range asked.Request.Objects {
		converted[i] = convert(o, asked.Request.DesiredAPIVersion)
	}
	return object{"apiVersion": asked.APIVersion, "kind": asked.Kind, "response": object{"uid": asked.Request.UID,
		"convertedObjects": converted, "result": object{"status": "Success"}}}
}

// convert converts an Endpoint. The server only uses the labels and annotations of the returned metadata.
func convert(in object, to string) object {
	out := maps.Clone(in)
	out["apiVersion"] = to
	spec, _ := in["spec"].(object)
	spec = maps.Clone(spec)
	status, _ := in["status"].(object)
	switch {
	case in["apiVersion"] == to:
	case strings.HasSuffix(to, "/v2"):
		if spec != nil {
			spec["address"] = fmt.Sprintf("%v:%v", spec["host"], spec["port"])
			delete(spec, "host")
			delete(spec, "port")
		}
		if ready, ok := status["ready"].(bool); ok {
			status = object{"phase": map[bool]string{true: "Ready", false: "Waiting"}[ready]}
		}
	default:
		if address, ok := spec["address"].(string); ok {
			host, port, _ := strings.Cut(address, ":")
			n, _ := strconv.Atoi(port)
			spec["host"], spec["port"] = host, n
			delete(spec, "address")
		}
		if phase, ok := status["phase"].(string); ok {
			status = object{"ready": phase == "Ready"}
		}
	}
	if spec != nil {
		out["spec"] = spec
	}
	if status != nil {
		out["status"] = status
	}
	return out
}

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	v1, v2 = endpoints("v1"), endpoints("v2")
)

func endpoints(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "endpoints"}
}

const definitionJSON = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
"metadata":{"name":"endpoints.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"endpoints","kind":"Endpoint"},
 "versions":[
 {"name":"v1","served":true,"storage":false,"subresources":{"status":{},
   "scale":{"specReplicasPath":".spec.port","statusReplicasPath":".status.replicas"}},
  "selectableFields":[{"jsonPath":".spec.host"}],
  "additionalPrinterColumns":[{"name":"Host","type":"string","jsonPath":".spec.host"}],
  "schema":{"openAPIV3Schema":{"type":"object","properties":{
   "spec":{"type":"object","required":["host"],"properties":{"host":{"type":"string","maxLength":20},
    "port":{"type":"integer","default":80},"tags":{"type":"array","items":{"type":"string"}}}},
   "status":{"type":"object","properties":{"ready":{"type":"boolean"}}}}}}},
 {"name":"v2","served":true,"storage":true,"subresources":{"status":{}},
  "selectableFields":[{"jsonPath":".spec.address"}],
  "additionalPrinterColumns":[{"name":"Address","type":"string","jsonPath":".spec.address"}],
  "schema":{"openAPIV3Schema":{"type":"object","properties":{
   "spec":{"type":"object","required":["address"],"properties":{"address":{"type":"string"},
    "tags":{"type":"array","items":{"type":"string"}}}},
   "status":{"type":"object","properties":{"phase":{"type":"string"}}}}}}}],
 "conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{}}}}}`

// definition returns the definition of the kind Endpoint with a webhook as converter.
func definition(t testing.TB, clientConfig object) *unstructured.Unstructured {
	t.Helper()
	crd := &unstructured.Unstructured{}
	require.NoError(t, json.Unmarshal([]byte(definitionJSON), &crd.Object))
	require.NoError(t, unstructured.SetNestedMap(crd.Object, clientConfig, "spec", "conversion", "webhook",
		"clientConfig"))
	return crd
}

// byURL returns the client configuration for the webhook's URL.
func (h *hook) byURL() object {
	return object{"url": h.URL + "/convert", "caBundle": encoded(h.ca.PEM())}
}

func encoded(data []byte) string {
	text, _ := json.Marshal(data)
	return strings.Trim(string(text), `"`)
}

// cluster is a server with the kind Endpoint.
type cluster struct {
	dynamic.Interface
	*servertest.Server
	t    testing.TB
	hook *hook
}

// serve starts a server and a webhook, and defines the kind.
func serve(t testing.TB, o apiserver.Options, changes ...func(crd *unstructured.Unstructured)) *cluster {
	t.Helper()
	h := newHook(t, "hook.default.svc")
	s := servertest.Start(t, o)
	client, err := dynamic.NewForConfig(s.Config)
	require.NoError(t, err)
	c := &cluster{Interface: client, Server: s, t: t, hook: h}
	crd := definition(t, h.byURL())
	for _, change := range changes {
		change(crd)
	}
	c.define(crd)
	return c
}

// define creates a definition and waits until its kind is served.
func (c *cluster) define(crd *unstructured.Unstructured) {
	c.t.Helper()
	_, err := c.Resource(definitions).Create(c.t.Context(), crd, metav1.CreateOptions{})
	require.NoError(c.t, err)
	require.Eventually(c.t, func() bool {
		_, err := c.in(v2).List(c.t.Context(), metav1.ListOptions{})
		return err == nil
	}, patience, tick)
}

// redefine changes the definition and waits until the server uses it.
func (c *cluster) redefine(change func(crd *unstructured.Unstructured)) {
	c.t.Helper()
	crd, err := c.Resource(definitions).Get(c.t.Context(), "endpoints.example.com", metav1.GetOptions{})
	require.NoError(c.t, err)
	change(crd)
	before := c.Registry.Snapshot().Resource(v2)
	_, err = c.Resource(definitions).Update(c.t.Context(), crd, metav1.UpdateOptions{})
	require.NoError(c.t, err)
	require.Eventually(c.t, func() bool { return c.Registry.Snapshot().Resource(v2) != before }, patience, tick)
}

// in returns a client for the endpoints of a version in the namespace default.
func (c *cluster) in(version schema.GroupVersionResource) dynamic.ResourceInterface {
	return c.Resource(version).Namespace("default")
}

// get returns an object.
func (c *cluster) get(version schema.GroupVersionResource, name string) object {
	c.t.Helper()
	got, err := c.in(version).Get(c.t.Context(), name, metav1.GetOptions{})
	require.NoError(c.t, err)
	return got.Object
}

func (c *cluster) create(version, name string, spec object) *unstructured.Unstructured {
	c.t.Helper()
	made, err := c.in(endpoints(version)).Create(c.t.Context(), endpoint(version, name, spec), metav1.CreateOptions{})
	require.NoError(c.t, err)
	return made
}

// patch applies a merge patch to an object.
func (c *cluster) patch(version schema.GroupVersionResource, name, body string,
	subresources ...string) (*unstructured.Unstructured, error) {
	return c.in(version).Patch(c.t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{},
		subresources...)
}

func endpoint(version, name string, spec object) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: object{"apiVersion": "example.com/" + version, "kind": "Endpoint",
		"metadata": object{"name": name}, "spec": spec}}
}

// raw makes a request and returns the code and body of the response.
func (c *cluster) raw(ctx context.Context, method, path, accept string) (int, string) {
	c.t.Helper()
	transport, err := c.transport()
	require.NoError(c.t, err)
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, c.Config.Host+path, http.NoBody)
	require.NoError(c.t, err)
	req.Header.Set("Accept", accept)
	res, err := transport.RoundTrip(req)
	require.NoError(c.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(c.t, err)
	return res.StatusCode, string(body)
}

func (c *cluster) transport() (*http.Transport, error) {
	cert, err := tls.X509KeyPair(c.Config.CertData, c.Config.KeyData)
	if err != nil {
		return nil, err
	}
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: c.CA.Pool(), Certificates: []tls.Certificate{cert}},
		DialContext: (&net.Dialer{}).DialContext}, nil
}

// collectionOptions returns the options that the server opens the collection of endpoints with.
func (c *cluster) collectionOptions() storage.CollectionOptions {
	res := c.Registry.Snapshot().Resource(v2)
	return storage.CollectionOptions{Fields: res.Stored().SelectablePaths()}
}

// storedDocument returns an object as stored.
func (c *cluster) storedDocument(name string) string {
	c.t.Helper()
	o, err := c.Store.Collection("example.com/endpoints", c.collectionOptions()).Get(c.t.Context(), "default", name,
		storage.At{})
	require.NoError(c.t, err)
	return string(o.Stored())
}
