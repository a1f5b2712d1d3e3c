package apiserver_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// BenchmarkAudit creates a ConfigMap of 1 kB, on an embedded etcd, with nothing recorded and with more and more of it.
// Compare cpu-µs/op within one run.
func BenchmarkAudit(b *testing.B) {
	const once = "omitStages: [RequestReceived]\n"
	for _, c := range []struct{ name, policy, mode string }{
		{"off", "", ""},
		{"metadata", once + "rules: [{level: Metadata}]\n", audit.ModeBlocking},
		{"metadata-batch", once + "rules: [{level: Metadata}]\n", audit.ModeBatch},
		{"metadata-2-stages", "rules: [{level: Metadata}]\n", audit.ModeBlocking},
		{"request-response", once + auditAll, audit.ModeBlocking},
	} {
		b.Run(c.name, func(b *testing.B) {
			var o apiserver.Options
			etcd, err := storage.StartEmbedded(b.Context(), storage.EmbeddedOptions{Dir: b.TempDir()})
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, etcd.Close()) })
			o.Store = servertest.Store(b, etcd, storage.Options{})
			if c.policy != "" {
				a := audit.Defaults()
				a.PolicyFile, a.Log.Path = filepath.Join(b.TempDir(), "policy"), filepath.Join(b.TempDir(), "audit.log")
				a.Log.Batch.Mode = c.mode
				writePolicy(b, a.PolicyFile, c.policy)
				o.Audit, err = audit.Open(a, slog.New(slog.DiscardHandler))
				require.NoError(b, err)
				b.Cleanup(func() { require.NoError(b, o.Audit.Close()) })
			}
			s := connect(b, servertest.Start(b, o).Config)
			var serial atomic.Int64
			text := strings.Repeat("x", 900)
			measure(b, func() {
				s.quick(b, http.MethodPost, configMaps, "application/json", fmt.Appendf(nil,
					`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c%d"},"data":{"k":%q}}`, serial.Add(1), text))
			})
		})
	}
}
