package aggregation_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
)

// The other server logs the request under the same audit ID. The client gets the ID once, regardless of the other
// server's answer.
func TestPass_TheAuditIDIsTheSame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := audit.Defaults()
	o.PolicyFile, o.Log.Path = filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	require.NoError(t, os.WriteFile(o.PolicyFile, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+
		"rules: [{level: RequestResponse, resources: [{group: wardle.example.com}]}]\n"), 0o600))
	auditor, err := audit.Open(o, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, auditor.Close()) })
	c, e := extend(t, apiserver.Options{Audit: auditor}, true)
	e.answers(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Audit-Id", "of-another")
		w.WriteHeader(http.StatusTeapot)
	})
	e.requests()

	const path = "/apis/wardle.example.com/v1/namespaces/default/flunders"
	got := c.do(c.http, http.MethodPost, path, []byte(`{"secret":"of the other server"}`))
	require.Equal(t, http.StatusTeapot, got.code)
	require.Len(t, got.header["Audit-Id"], 1)
	id := got.header.Get("Audit-Id")
	seen := e.requests()
	require.Len(t, seen, 1)
	require.Equal(t, []string{id}, seen[0].Header["Audit-Id"])

	var stages []string
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(o.Log.Path)
		require.NoError(t, err)
		stages = nil
		for line := range strings.Lines(string(text)) {
			var event struct {
				AuditID, Stage, Verb string
				RequestObject        json.RawMessage
				ObjectRef            struct{ Resource, Namespace, APIGroup string }
				ResponseStatus       struct{ Code int }
			}
			if !strings.HasSuffix(line, "\n") || json.Unmarshal([]byte(line), &event) != nil || event.AuditID != id {
				continue
			}
			stages = append(stages, event.Stage)
			require.Equal(t, "create", event.Verb)
			require.Equal(t, "flunders", event.ObjectRef.Resource)
			require.Equal(t, "wardle.example.com", event.ObjectRef.APIGroup)
			require.Empty(t, event.RequestObject, "the bodies are the other server's")
			if event.Stage == "ResponseComplete" {
				require.Equal(t, http.StatusTeapot, event.ResponseStatus.Code)
			}
		}
		return len(stages) == 2
	}, patience, tick)
	require.Equal(t, []string{"RequestReceived", "ResponseComplete"}, stages)
}
