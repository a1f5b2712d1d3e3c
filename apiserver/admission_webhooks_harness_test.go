package apiserver_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

const (
	mutatingHooks   = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
	validatingHooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	webhookCalls    = "/debug/admission_webhooks"
)

// hookServer serves admission webhooks, one at each path.
type hookServer struct {
	*httptest.Server
	ca *pki.CA

	mu     sync.Mutex
	asked  map[string][]m // the reviews of each path
	answer map[string]http.HandlerFunc
}

// newHooks starts a server of webhooks.
func newHooks(t testing.TB) *hookServer {
	t.Helper()
	ca, err := pki.NewCA()
	require.NoError(t, err)
	cert, err := ca.Server("127.0.0.1", "hook.default.svc")
	require.NoError(t, err)
	h := &hookServer{ca: ca, asked: map[string][]m{}, answer: map[string]http.HandlerFunc{}}
	h.Server = httptest.NewUnstartedServer(h)
	h.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	h.Config.ErrorLog = log.New(io.Discard, "", 0) // discards failed handshakes
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

// ServeHTTP implements http.Handler. A path without a handler allows every request.
func (h *hookServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var review m
	if err := json.Unmarshal(body, &review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	h.asked[r.URL.Path] = append(h.asked[r.URL.Path], review)
	answer := h.answer[r.URL.Path]
	h.mu.Unlock()
	if answer == nil {
		answer = respond(m{"allowed": true})
	}
	answer(w, r.WithContext(withReview(r.Context(), review)))
}

type reviewKey struct{}

func withReview(ctx context.Context, review m) context.Context {
	return context.WithValue(ctx, reviewKey{}, review)
}

func reviewOf(ctx context.Context) m { return ctx.Value(reviewKey{}).(m) }

// reviews returns the requests of the reviews that a path has received since the last call.
func (h *hookServer) reviews(path string) []m {
	h.mu.Lock()
	defer h.mu.Unlock()
	var requests []m
	for _, review := range h.asked[path] {
		requests = append(requests, review["request"].(m))
	}
	delete(h.asked, path)
	return requests
}

func (h *hookServer) answers(path string, answer http.HandlerFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer[path] = answer
}

// respond returns a handler that answers with a response, and adds the uid of the request if it has none.
func respond(response m) http.HandlerFunc {
	return respondWith(func(review m) m {
		response := maps.Clone(response)
		if _, ok := response["uid"]; !ok {
			response["uid"] = review["request"].(m)["uid"]
		}
		return m{"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}
	})
}

// respondWith returns a handler that answers with the result of a function of the review.
func respondWith(answer func(review m) m) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer(reviewOf(r.Context())))
	}
}

// respondPatch returns a handler that allows a request and patches its object.
func respondPatch(operations ...m) http.HandlerFunc {
	return respond(m{"allowed": true, "patchType": "JSONPatch", "patch": encodePatch(operations...)})
}

func encodePatch(operations ...m) string {
	text, _ := json.Marshal(operations)
	return base64.StdEncoding.EncodeToString(text)
}

func add(path string, value any) m { return m{"op": "add", "path": path, "value": value} }

// label returns the operation that adds a label; the object must have labels.
func label(key, value string) m { return add("/metadata/labels/"+key, value) }

// hooked is a server with webhooks.
type hooked struct {
	*server
	hooks *hookServer
}

func startHooked(t testing.TB) *hooked {
	t.Helper()
	return hookedBy(start(t))
}

func hookedBy(s *server) *hooked { return &hooked{server: s, hooks: newHooks(s.t)} }

// hook returns a webhook for all ConfigMaps, with these changes. Its path is its name.
func (h *hooked) hook(name string, changes m) m {
	w := m{"name": name, "sideEffects": "None", "admissionReviewVersions": []string{"v1"},
		"rules": []m{{"apiGroups": []string{""}, "apiVersions": []string{"*"}, "resources": []string{"configmaps"},
			"operations": []string{"*"}}},
		"clientConfig": m{"url": h.hooks.URL + "/" + name, "caBundle": h.hooks.ca.PEM()}}
	maps.Copy(w, changes)
	return w
}

// mutates configures mutating webhooks, and validates validating ones.
func (h *hooked) mutates(configuration string, hooks ...m) {
	h.t.Helper()
	h.configure(mutatingHooks, "MutatingWebhookConfiguration", configuration, hooks)
}

func (h *hooked) validates(configuration string, hooks ...m) {
	h.t.Helper()
	h.configure(validatingHooks, "ValidatingWebhookConfiguration", configuration, hooks)
}

func (h *hooked) configure(path, kind, configuration string, hooks []m) {
	h.t.Helper()
	h.create(path, m{"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": m{"name": configuration},
		"webhooks": hooks})
}

// on sets the handler of a webhook, and asked returns the requests that it has received.
func (h *hooked) on(name string, answer http.HandlerFunc) { h.hooks.answers("/"+name, answer) }

func (h *hooked) asked(name string) []m { return h.hooks.reviews("/" + name) }

// once returns the only request that a webhook has received.
func (h *hooked) once(name string) m {
	h.t.Helper()
	reviews := h.asked(name)
	require.Len(h.t, reviews, 1)
	return reviews[0]
}

// closedPort returns an address without a listener.
func closedPort(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	return ln.Addr().String()
}
