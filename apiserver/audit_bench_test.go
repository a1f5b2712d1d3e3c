package apiserver_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// BenchmarkAudit creates ConfigMaps of 1 kB on two servers with an embedded etcd each, by turns: one that records
// nothing and one that does. An operation is a create on both; more-% is the CPU time that recording adds to one.
func BenchmarkAudit(b *testing.B) {
	const once = "omitStages: [RequestReceived]\n"
	for _, c := range []struct{ name, policy, mode string }{
		{"metadata", once + "rules: [{level: Metadata}]\n", audit.ModeBlocking},
		{"metadata-batch", once + "rules: [{level: Metadata}]\n", audit.ModeBatch},
		{"metadata-2-stages", "rules: [{level: Metadata}]\n", audit.ModeBlocking},
		{"request-response", once + auditAll, audit.ModeBlocking},
	} {
		b.Run(c.name, func(b *testing.B) {
			servers := []*server{auditBench(b, "", ""), auditBench(b, c.policy, c.mode)}
			var took [2]time.Duration
			serial := 0
			for n := 0; n < b.N; n += auditTurn {
				for turn := range servers {
					i := (turn + n/auditTurn) % 2 // neither always comes second
					began := cpu(b)
					createMany(b, servers[i], serial)
					took[i] += cpu(b) - began
				}
				serial += auditTurn
			}
			b.ReportMetric(float64(took[0].Microseconds())/float64(serial), "off-cpu-µs")
			b.ReportMetric(float64(took[1].Microseconds())/float64(serial), "on-cpu-µs")
			b.ReportMetric(100*(took[1]-took[0]).Seconds()/took[0].Seconds(), "more-%")
		})
	}
}

// auditTurn is how many objects are created on a server before it is the other's turn.
const auditTurn = 200

// createMany creates ConfigMaps from 16 clients.
func createMany(b *testing.B, s *server, serial int) {
	text := strings.Repeat("x", 900)
	var running sync.WaitGroup
	for worker := range 16 {
		running.Go(func() {
			for i := worker; i < auditTurn; i += 16 {
				s.quick(b, http.MethodPost, configMaps, "application/json", fmt.Appendf(nil,
					`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c%d"},"data":{"k":%q}}`, serial+i, text))
			}
		})
	}
	running.Wait()
}

// auditBench is a server with an embedded etcd that records by a policy, if there is one.
func auditBench(b *testing.B, policy, mode string) *server {
	etcd, err := storage.StartEmbedded(b.Context(), storage.EmbeddedOptions{Dir: b.TempDir()})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, etcd.Close()) })
	o := apiserver.Options{Store: servertest.Store(b, etcd, storage.Options{})}
	if policy != "" {
		a := audit.Defaults()
		a.PolicyFile, a.Log.Path = filepath.Join(b.TempDir(), "policy"), filepath.Join(b.TempDir(), "audit.log")
		a.Log.Batch.Mode = mode
		writePolicy(b, a.PolicyFile, policy)
		o.Audit, err = audit.Open(a, slog.New(slog.DiscardHandler))
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, o.Audit.Close()) })
	}
	return connect(b, servertest.Start(b, o).Config)
}
