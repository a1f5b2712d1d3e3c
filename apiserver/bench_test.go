package apiserver_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// The hot paths over real TLS. Client and server share the process, so that cpu-µs/op includes both. BenchmarkLivez is
// a lower bound of the client's part, since it costs the server almost no work.

func (s *server) quick(b *testing.B, method, path, kind string, body []byte) {
	req, err := http.NewRequest(method, s.config.Host+path, bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	if len(body) == 0 {
		req.Body = http.NoBody
	}
	req.Header.Set("Content-Type", kind)
	res, err := s.http.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	_, err = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	if err != nil || res.StatusCode >= 300 {
		b.Fatal(res.Status, err)
	}
}

func cpu(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// measure runs f from 16 clients and reports the CPU time per operation.
func measure(b *testing.B, f func()) {
	b.SetParallelism(8) // times two cores
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu(b)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			f()
		}
	})
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

// largePod returns a pod of about 2 kB as JSON.
func largePod(name string) []byte {
	p := with(pod(name), "annotations", m{"example.com/text": strings.Repeat("x", 1500)})
	with(p, "labels", m{"app": "bench", "tier": "backend"})
	text, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return text
}

func BenchmarkLivez(b *testing.B) {
	s := start(b)
	measure(b, func() { s.quick(b, http.MethodGet, "/livez", "", nil) })
}

func BenchmarkGet(b *testing.B) {
	s := start(b)
	s.quick(b, http.MethodPost, pods, "application/json", largePod("a"))
	measure(b, func() { s.quick(b, http.MethodGet, pods+"/a", "", nil) })
}

func BenchmarkCreate(b *testing.B) {
	s := start(b)
	p := bytes.Replace(largePod("x"), []byte(`"name":"x"`), []byte(`"generateName":"p-"`), 1)
	measure(b, func() { s.quick(b, http.MethodPost, pods, "application/json", p) })
}

func BenchmarkPatchLabels(b *testing.B) {
	s := start(b)
	var serial atomic.Int64
	const objects = 256
	for i := range objects {
		s.quick(b, http.MethodPost, pods, "application/json", largePod(fmt.Sprintf("p%d", i)))
	}
	measure(b, func() {
		i := serial.Add(1)
		s.quick(b, http.MethodPatch, fmt.Sprintf("%s/p%d", pods, i%objects), mergePatch,
			fmt.Appendf(nil, `{"metadata":{"labels":{"serial":"%d"}}}`, i))
	})
}

func BenchmarkList10000Pods(b *testing.B) {
	s := start(b)
	fill(b, s, 10_000)
	list := func(name, accept string, http2 bool) {
		b.Run(name, func(b *testing.B) {
			client := &server{t: b, config: s.config, http: httpClient(b, s.config, http2)}
			before := cpu(b)
			for b.Loop() {
				answered := client.get(pods, "Accept", accept).ok(http.StatusOK)
				b.SetBytes(int64(len(answered.body)))
			}
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
	for _, accept := range []string{"application/json", protobuf, asTable} {
		list(accept, accept, true)
	}
	list("application/json over HTTP/1.1", "application/json", false)
}

func fill(b *testing.B, s *server, n int) {
	b.Helper()
	var filling sync.WaitGroup
	for worker := range 16 {
		filling.Go(func() {
			for i := worker; i < n; i += 16 {
				s.quick(b, http.MethodPost, pods, "application/json", largePod(fmt.Sprintf("p%05d", i)))
			}
		})
	}
	filling.Wait()
	require.Len(b, s.get(pods+"?limit=1").names(), 1)
}

// BenchmarkWatchFanOut measures the delivery of one change to 200 watchers.
func BenchmarkWatchFanOut(b *testing.B) {
	for name, http2 := range protocols {
		b.Run(name, func(b *testing.B) { fanOut(b, http2) })
	}
}

func fanOut(b *testing.B, http2 bool) {
	s := start(b)
	s.http = httpClient(b, s.config, http2)
	const watchers = 200
	s.quick(b, http.MethodPost, pods, "application/json", largePod("a"))
	var streams []*watchStream
	for range watchers {
		w := s.watch(pods + "?watch=1")
		w.expect("ADDED", "a")
		streams = append(streams, w)
	}
	before := cpu(b)
	i := 0
	for b.Loop() {
		i++
		s.quick(b, http.MethodPatch, pods+"/a", mergePatch,
			fmt.Appendf(nil, `{"metadata":{"labels":{"serial":"%d"}}}`, i))
		for _, w := range streams {
			if !w.scan.Scan() {
				b.Fatal("a watch ended: ", w.scan.Err())
			}
		}
	}
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/1000/float64(b.N*watchers), "cpu-µs/event")
}

// BenchmarkMiddleware compares a GET without Options.Middleware, which must not cost more, with one that wraps the
// response.
func BenchmarkMiddleware(b *testing.B) {
	for name, middleware := range map[string]func(http.Handler) http.Handler{
		"none": nil,
		"wraps": func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(wrapped{w}, r) })
		},
	} {
		b.Run(name, func(b *testing.B) {
			s := connect(b, servertest.Start(b, apiserver.Options{Middleware: middleware}).Config)
			s.quick(b, http.MethodPost, configMaps, "application/json", []byte(`{"metadata":{"name":"a"}}`))
			measure(b, func() { s.quick(b, http.MethodGet, configMaps+"/a", "", nil) })
		})
	}
}
