package audit

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// The event of a slow request shows the durations of its parts; the event of a watch does not.
func TestRequest_SlowOnesShowTheirParts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := Defaults()
	o.PolicyFile, o.Log.Path, o.Log.Batch.Mode = filepath.Join(dir, "policy"), filepath.Join(dir, "log"), ModeBlocking
	require.NoError(t, os.WriteFile(o.PolicyFile, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+
		"omitStages: [RequestReceived, ResponseStarted]\nrules: [{level: Metadata}]\n"), 0o600))
	a, err := Open(o, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	hr := httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/default/configmaps", nil)
	for _, c := range []struct {
		ago         time.Duration
		longRunning bool
	}{{slow, false}, {0, false}, {time.Hour, true}} {
		r := a.Begin(hr, &authz.Attributes{Verb: "create", Resource: "configmaps"}, time.Now().Add(-c.ago), c.longRunning)
		r.Took(MutatingWebhooks, 100*time.Millisecond)
		r.Took(MutatingWebhooks, 200*time.Millisecond)
		r.Took(ValidatingWebhooks, 100*time.Millisecond)
		r.Took(ValidatingWebhooks, 200*time.Millisecond)
		r.Took(Storage, time.Millisecond)
		r.Answered(http.StatusCreated)
		r.Complete()
	}
	a.Close()
	log, err := os.ReadFile(o.Log.Path)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	require.Len(t, lines, 3)
	require.Contains(t, lines[0], `"annotations":{"apiserver.latency.k8s.io/authentication":"`)
	require.Contains(t, lines[0], `"apiserver.latency.k8s.io/etcd":"1ms",`+
		`"apiserver.latency.k8s.io/mutating-webhook":"300ms","apiserver.latency.k8s.io/total":"`)
	require.Contains(t, lines[0], `"apiserver.latency.k8s.io/validating-webhook":"200ms"}`)
	require.NotContains(t, lines[1]+lines[2], "latency")
}
