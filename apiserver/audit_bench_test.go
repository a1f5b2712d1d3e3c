package apiserver_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// BenchmarkAudit creates ConfigMaps of 1 kB on two servers of one embedded etcd, by turns: one that records nothing and
// one that does. An operation is a create on both; more-% is the CPU time that recording adds to one: the median over
// all pairs of turns, of which now and then one has the garbage collector's work.
func BenchmarkAudit(b *testing.B) {
	const once = "omitStages: [RequestReceived]\n"
	for _, c := range []struct{ name, policy, mode string }{
		{"metadata", once + "rules: [{level: Metadata}]\n", audit.ModeBlocking},
		{"off", "rules: [{level: None}]\n", audit.ModeBlocking},
		{"metadata-batch", once + "rules: [{level: Metadata}]\n", audit.ModeBatch},
		{"metadata-2-stages", "rules: [{level: Metadata}]\n", audit.ModeBlocking},
		{"request-response", once + auditAll, audit.ModeBlocking},
	} {
		b.Run(c.name, func(b *testing.B) {
			etcd, err := storage.StartEmbedded(b.Context(), storage.EmbeddedOptions{Dir: b.TempDir()})
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, etcd.Close()) })
			servers := []*server{auditBench(b, etcd, "", ""), auditBench(b, etcd, c.policy, c.mode)}
			var off, on, more []float64
			serial := 0
			for n := 0; n < b.N; n += auditTurn {
				var took [2]float64
				for turn := range servers {
					i := (turn + n/auditTurn) % 2 // neither always comes second
					began := cpu(b)
					createMany(b, servers[i], serial)
					took[i] = (cpu(b) - began).Seconds() * 1e6 / auditTurn
					serial += auditTurn
				}
				off, on = append(off, took[0]), append(on, took[1])
				more = append(more, 100*(took[1]-took[0])/took[0])
			}
			b.ReportMetric(median(off), "off-cpu-µs")
			b.ReportMetric(median(on), "on-cpu-µs")
			b.ReportMetric(median(more), "more-%")
		})
	}
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
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

// auditBench is a server that records by a policy, if there is one.
func auditBench(b *testing.B, etcd storage.Backend, policy, mode string) *server {
	o := apiserver.Options{Store: servertest.Store(b, etcd, storage.Options{})}
	if policy != "" {
		a := audit.Defaults()
		a.PolicyFile, a.Log.Path = filepath.Join(b.TempDir(), "policy"), filepath.Join(b.TempDir(), "audit.log")
		a.Log.Batch.Mode = mode
		writePolicy(b, a.PolicyFile, policy)
		var err error
		o.Audit, err = audit.Open(a, slog.New(slog.DiscardHandler))
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, o.Audit.Close()) })
	}
	return connect(b, servertest.Start(b, o).Config)
}
