package ingress

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/utils/clock"
)

// BenchmarkProxy sends requests with small responses to a backend, in turns of 500: directly, through a plain
// httputil.ReverseProxy, and through the proxy. cpu-µs is the CPU time that the proxy adds to a direct request; ratio
// compares that with the plain ReverseProxy. The access log is on.
func BenchmarkProxy(b *testing.B) {
	behind := httptest.NewServer(text("hello"))
	defer behind.Close()
	target, err := url.Parse(behind.URL)
	require.NoError(b, err)
	tr := &http.Transport{MaxIdleConnsPerHost: 256}
	defer tr.CloseIdleConnections()
	bare := httptest.NewServer(&httputil.ReverseProxy{Transport: tr, BufferPool: &buffers{},
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.SetXForwarded() }})
	defer bare.Close()
	ours := httptest.NewServer(benchProxy(b, behind.Listener.Addr().String()))
	defer ours.Close()

	const turn = 500
	var spent [3]time.Duration
	get := func(base string) {
		for range turn {
			response, err := http.Get(base + "/path/of/some/length?and=query")
			require.NoError(b, err)
			_, err = io.Copy(io.Discard, response.Body)
			require.NoError(b, err)
			require.Equal(b, http.StatusOK, response.StatusCode)
			_ = response.Body.Close()
		}
	}
	get(bare.URL)
	get(ours.URL)
	n := 0
	for b.Loop() {
		for i, base := range []string{behind.URL, bare.URL, ours.URL} {
			began := cpuTime(b)
			get(base)
			spent[i] += cpuTime(b) - began
		}
		n += turn
	}
	b.ReportMetric(float64((spent[2]-spent[0]).Microseconds())/float64(n), "cpu-µs")
	b.ReportMetric(float64(spent[2]-spent[0])/float64(spent[1]-spent[0]), "ratio")
	http.DefaultClient.CloseIdleConnections()
}

// benchProxy returns a proxy with one Ingress, for the host 127.0.0.1.
func benchProxy(b *testing.B, address string) *proxy {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	o := Options{HTTP: ln}
	b.Cleanup(o.Close)
	require.NoError(b, o.complete())
	m := newMetrics(func() int { return 0 })
	rt := newTransport(clock.RealClock{}, o.dial, m.retries.Inc)
	b.Cleanup(rt.close)
	p := newProxy(o, rt, m, newAccessLog(io.Discard, o.Clock))
	routing := newTestRouting(false)
	routing.upstreams.resolve = func(u *upstream) { u.now.Store(&backends{endpoints: []*endpoint{{address: address}}}) }
	routing.set(ingressAt("default", "bench", 0, "127.0.0.1", pathOf(networkingv1.PathTypePrefix, "/", "s")))
	p.table.Store(routing.commit())
	return p
}

// cpuTime returns the CPU time of this process.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
