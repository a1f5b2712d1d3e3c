package audit

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// patience is how long a test waits for a server, and tick how often it polls.
const (
	patience = time.Minute
	tick     = 5 * time.Millisecond
)

// receiver is a server that receives audit events.
type receiver struct {
	*httptest.Server

	mu     sync.Mutex
	answer http.HandlerFunc // nil accepts all
	events []string         // their audit IDs
	calls  int
}

func newReceiver(t testing.TB) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewTLSServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.calls++
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		answer(w, req)
		return
	}
	text, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	var list struct {
		Kind, APIVersion string
		Items            []struct{ Kind, AuditID string }
	}
	if err := json.Unmarshal(text, &list); err != nil || list.Kind != "EventList" || list.APIVersion != apiVersion {
		http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range list.Items {
		r.events = append(r.events, e.Kind+e.AuditID)
	}
}

func (r *receiver) answers(answer http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *receiver) received() ([]string, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events, r.calls
}

// kubeconfig writes a kubeconfig for the receiver.
func (r *receiver) kubeconfig(t testing.TB, path string) {
	t.Helper()
	ca := path + ".ca" // a relative path in the kubeconfig
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: r.Certificate().Raw}), 0o600))
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
		"clusters: [{name: c, cluster: {server: '%s', certificate-authority: %s}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u}]\n", r.URL, filepath.Base(ca))
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// sending returns an Auditor that posts all events to the receiver.
func sending(t testing.TB, r *receiver, change func(*WebhookOptions)) (a *Auditor, config string) {
	t.Helper()
	dir := t.TempDir()
	o := Defaults()
	o.PolicyFile, o.Webhook.ConfigFile = filepath.Join(dir, "policy"), filepath.Join(dir, "kubeconfig")
	o.Webhook.InitialBackoff = time.Millisecond
	o.Webhook.Batch.MaxWait = 10 * time.Millisecond
	o.Webhook.Batch.ThrottleEnable = false
	change(&o.Webhook)
	r.kubeconfig(t, o.Webhook.ConfigFile)
	require.NoError(t, os.WriteFile(o.PolicyFile,
		[]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600))
	a, err := Open(o, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.Close() })
	return a, o.Webhook.ConfigFile
}

// receive records the first event of a request, and reports whether the request may be served.
func receive(t testing.TB, a *Auditor, id string) bool {
	t.Helper()
	hr := httptest.NewRequest(http.MethodGet, "/version", nil)
	hr.Header.Set(HeaderID, id)
	r := a.Begin(hr, &authz.Attributes{User: &authn.User{Name: "u"}, Verb: "get", Path: "/version"}, time.Now(), false)
	return r.Receive()
}

func TestWebhook_ReceivesBatchesAndTheRestOnClose(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	a, _ := sending(t, r, func(o *WebhookOptions) { o.Batch.MaxSize, o.Batch.MaxWait = 10, time.Hour })
	var want []string
	for i := range 25 {
		want = append(want, fmt.Sprint("id-", i))
		require.True(t, receive(t, a, want[i]))
	}
	require.NoError(t, a.Close())
	got, calls := r.received()
	require.ElementsMatch(t, want, got)
	require.Equal(t, 3, calls)
}

func TestWebhook_ReceivesRetriedEventsAfterAFailure(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	failures := make(chan struct{}, 100)
	r.answers(func(w http.ResponseWriter, _ *http.Request) {
		failures <- struct{}{}
		http.Error(w, "down", http.StatusForbidden) // any failure is retried
	})
	a, _ := sending(t, r, func(o *WebhookOptions) { o.InitialBackoff = 20 * time.Millisecond })
	require.True(t, receive(t, a, "one"))
	<-failures
	r.answers(nil)
	require.Eventually(t, func() bool { got, _ := r.received(); return len(got) == 1 }, patience, tick)
	require.Zero(t, testutil.CollectAndCount(a.metrics.errors))
}

func TestWebhook_ThatIsDownBlocksNoRequests(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	hang := make(chan struct{})
	r.answers(func(w http.ResponseWriter, _ *http.Request) { <-hang; http.Error(w, "down", http.StatusBadGateway) })
	a, _ := sending(t, r, func(o *WebhookOptions) { o.Batch.BufferSize, o.Batch.MaxSize, o.Batch.MaxWait = 10, 1, 0 })
	const sent = 100
	for i := range sent {
		require.True(t, receive(t, a, fmt.Sprint(i)), "a full buffer refuses no request")
	}
	dropped := testutil.ToFloat64(a.metrics.errors.WithLabelValues("buffered"))
	require.GreaterOrEqual(t, dropped, float64(sent-10-webhookWriters))
	close(hang)
	require.Eventually(t, func() bool {
		lost := testutil.ToFloat64(a.metrics.errors.WithLabelValues("webhook"))
		return lost+dropped == sent
	}, patience, tick, "after %d tries each", webhookTries)
}

func TestWebhook_BlockingStrictRejectsWithoutIt(t *testing.T) {
	t.Parallel()
	for mode, served := range map[string]bool{ModeBlocking: true, ModeBlockingStrict: false} {
		r := newReceiver(t)
		a, _ := sending(t, r, func(o *WebhookOptions) { o.Batch.Mode = mode })
		require.True(t, receive(t, a, "1"))
		r.answers(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", http.StatusBadGateway) })
		require.Equal(t, served, receive(t, a, "2"), mode)
		_, calls := r.received()
		require.Equal(t, 1+webhookTries, calls)
	}
}

func TestWebhook_ReloadsItsConfiguration(t *testing.T) {
	t.Parallel()
	before, after := newReceiver(t), newReceiver(t)
	a, config := sending(t, before, func(o *WebhookOptions) { o.Batch.Mode = ModeBlocking })
	require.True(t, receive(t, a, "1"))
	after.kubeconfig(t, config)
	require.Eventually(t, func() bool {
		receive(t, a, "2")
		got, _ := after.received()
		return len(got) > 0
	}, patience, tick)
	require.NoError(t, os.WriteFile(config, []byte("not: [a kubeconfig"), 0o600))
	require.True(t, receive(t, a, "3"))
}

func TestItems_RemovesTypeMeta(t *testing.T) {
	t.Parallel()
	lines := strings.Repeat(typeMeta+`"level":"Metadata"}`+"\n", 2)
	require.Equal(t, `{"level":"Metadata"},{"level":"Metadata"}`, string(items([]byte(lines))))
}
