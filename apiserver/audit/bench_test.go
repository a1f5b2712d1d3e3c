package audit

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// cpu returns the CPU time of the process, which on a busy machine is more reliable than wall-clock time.
func cpu(b *testing.B) time.Duration {
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkRequest measures the recording of one create event at the level Metadata.
func BenchmarkRequest(b *testing.B) {
	for name, c := range map[string]struct{ mode, path string }{
		"blocking": {ModeBlocking, "audit.log"}, "batch": {ModeBatch, "audit.log"}, "nowhere": {ModeBlocking, os.DevNull},
	} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			o := Defaults()
			o.PolicyFile, o.Log.Path, o.Log.Batch.Mode = filepath.Join(dir, "policy"), c.path, c.mode
			if !filepath.IsAbs(c.path) {
				o.Log.Path = filepath.Join(dir, c.path)
			}
			require.NoError(b, os.WriteFile(o.PolicyFile, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+
				"omitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"), 0o600))
			a, err := Open(o, slog.New(slog.DiscardHandler))
			require.NoError(b, err)
			defer a.Close()
			hr := httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/default/configmaps?fieldManager=kubectl-create",
				nil)
			hr.Header.Set("User-Agent", "kubectl/v1.30.0 (linux/amd64) kubernetes/abcdef0")
			attributes := &authz.Attributes{Verb: "create", Version: "v1", Resource: "configmaps", Namespace: "default",
				User: &authn.User{Name: "kubernetes-admin", Groups: []string{"system:masters", "system:authenticated"}}}
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				r := a.Begin(hr, attributes, time.Now(), false)
				r.Receive()
				r.Annotate("authorization.k8s.io/decision", "allow")
				r.Annotate("authorization.k8s.io/reason", "")
				r.Answered(http.StatusCreated)
				r.Complete()
			}
			b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
		})
	}
}
