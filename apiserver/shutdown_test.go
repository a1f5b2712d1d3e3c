package apiserver_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

func TestShutdown_ServesButIsNotReadyDuringTheDelay(t *testing.T) {
	t.Parallel()
	const delay = 2 * time.Second
	running := servertest.Start(t, apiserver.Options{ShutdownDelay: delay})
	s := connect(t, running.Config)
	s.get("/readyz").ok(http.StatusOK)
	w := s.watch(configMaps + "?watch=1")
	began := time.Now()
	running.Stop()
	require.Eventually(t, func() bool { return s.get("/readyz").code == http.StatusInternalServerError }, patience,
		time.Millisecond)
	require.Contains(t, string(s.get("/readyz").body), "[-]shutdown failed")
	s.get("/livez").ok(http.StatusOK)
	s.create(configMaps, configMap("late"))
	w.expect("ADDED", "late")
	late := s.watch(configMaps + "?watch=1")
	late.expect("ADDED", "late")
	for _, watching := range []*watchStream{w, late} {
		_, ok := watching.next()
		require.False(t, ok)
		require.NoError(t, watching.scan.Err(), "the watch ends as after its timeout")
	}
	<-running.Ended
	require.GreaterOrEqual(t, time.Since(began), delay)
}

func TestShutdown_RefusesWhileRequestsAreFinished(t *testing.T) {
	t.Parallel()
	served := make(chan struct{})
	telling := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				close(served)
			}
			next.ServeHTTP(w, r)
		})
	}
	running := servertest.Start(t, apiserver.Options{SendRetryAfter: true, Middleware: telling})
	s := connect(t, running.Config)
	w := s.watch(configMaps + "?watch=1")
	body, rest := io.Pipe()
	slow, err := http.NewRequestWithContext(t.Context(), http.MethodPost, running.Config.Host+configMaps, body)
	require.NoError(t, err)
	slow.Header.Set("Content-Type", "application/json")
	finished := make(chan int, 1)
	go func() {
		res, err := s.http.Do(slow)
		if err != nil {
			t.Error(err)
			close(finished)
			return
		}
		_ = res.Body.Close()
		finished <- res.StatusCode
	}()
	<-served
	running.Stop()
	for _, http2 := range []bool{true, false} {
		late := connect(t, running.Config)
		late.http = httpClient(t, running.Config, http2)
		var refused *answer
		require.Eventually(t, func() bool {
			refused = late.get(configMaps)
			return refused.code == http.StatusTooManyRequests
		}, patience, time.Millisecond)
		require.Equal(t, "5", refused.header.Get("Retry-After"))
		require.Contains(t, string(refused.body), "The apiserver is shutting down, please try again later.")
		late.get("/livez").ok(http.StatusOK)
		late.get("/metrics").ok(http.StatusOK)
	}
	_, ok := w.next()
	require.False(t, ok, "the shutdown does not wait for watches")
	_, err = io.WriteString(rest, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"slow"}}`)
	require.NoError(t, err)
	require.NoError(t, rest.Close())
	require.Equal(t, http.StatusCreated, <-finished)
	<-running.Ended
}

func TestShutdown_LeavesTheServiceAtOnce(t *testing.T) {
	t.Parallel()
	store := servertest.Store(t, servertest.Backend(t), storage.Options{})
	goes := servertest.Start(t, apiserver.Options{Store: store, ShutdownDelay: time.Second})
	stays := connect(t, servertest.Start(t, apiserver.Options{Store: store}).Config)
	port := goes.Config.Host[strings.LastIndex(goes.Config.Host, ":")+1:]
	named := func() bool {
		return strings.Contains(string(stays.get("/api/v1/namespaces/default/endpoints/kubernetes").body), port)
	}
	require.True(t, named(), "this machine has no address that an endpoint may have")
	goes.Stop()
	require.Eventually(t, func() bool { return !named() }, patience, time.Millisecond)
	select {
	case <-goes.Ended:
		t.Fatal("clients that know it must have time")
	default:
	}
}

// replaceable has the addresses of the running servers. Clients connect to the first that accepts a connection.
type replaceable struct {
	mu  sync.Mutex
	all []*servertest.Server
}

func (r *replaceable) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	r.mu.Lock()
	servers := r.all
	r.mu.Unlock()
	err := net.ErrClosed
	for _, s := range servers {
		dialer := tls.Dialer{Config: &tls.Config{RootCAs: s.CA.Pool(), Certificates: clientCertificates(s),
			NextProtos: []string{"h2"}}}
		var conn net.Conn
		conn, err = dialer.DialContext(ctx, "tcp", strings.TrimPrefix(s.Config.Host, "https://"))
		if err == nil {
			return conn, nil
		}
	}
	return nil, err
}

func clientCertificates(s *servertest.Server) []tls.Certificate {
	pair, err := tls.X509KeyPair(s.Config.CertData, s.Config.KeyData)
	if err != nil {
		panic(err)
	}
	return []tls.Certificate{pair}
}

// Servers are replaced one after the other. No request fails if its client tries twice.
func TestShutdown_NoRequestFailsTwiceWhileServersAreReplaced(t *testing.T) {
	t.Parallel()
	store := servertest.Store(t, servertest.Backend(t), storage.Options{})
	next := func() *servertest.Server { return servertest.Start(t, apiserver.Options{Store: store}) }
	servers := &replaceable{all: []*servertest.Server{next(), next(), next()}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	var done, failed atomic.Int64
	for i := range 4 {
		transport := &http.Transport{DialTLSContext: servers.dial, ForceAttemptHTTP2: true}
		t.Cleanup(transport.CloseIdleConnections)
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c-%d-%d"}}`, i, n)
				err := post(transport, body, http.StatusCreated)
				if err != nil { // the first attempt may have succeeded
					err = post(transport, body, http.StatusCreated, http.StatusConflict)
				}
				if err != nil {
					failed.Add(1)
					t.Errorf("tried twice: %v", err)
				}
				done.Add(1)
			}
		})
	}
	for range 3 {
		before := done.Load()
		require.Eventually(t, func() bool { return done.Load() > before+50 }, patience, time.Millisecond)
		fresh := next()
		servers.mu.Lock()
		old := servers.all[0]
		servers.all = append(append([]*servertest.Server{}, servers.all[1:]...), fresh)
		servers.mu.Unlock()
		old.Stop()
		<-old.Ended
	}
	stop()
	clients.Wait()
	require.Zero(t, failed.Load(), "of %d", done.Load())
}

func post(transport http.RoundTripper, body string, codes ...int) error {
	req, err := http.NewRequest(http.MethodPost, "https://127.0.0.1"+configMaps, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	for _, code := range codes {
		if res.StatusCode == code {
			return nil
		}
	}
	return fmt.Errorf("%s: %s", res.Status, content)
}

func TestGoaway_SendsClientsOnHTTP2ToOtherConnections(t *testing.T) {
	t.Parallel()
	running := servertest.Start(t, apiserver.Options{GoawayChance: 1})
	for _, http2 := range []bool{true, false} {
		s := connect(t, running.Config)
		s.http = httpClient(t, running.Config, http2)
		reused := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
			if c.Reused {
				reused++
			}
		}})
		for range 20 {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, running.Config.Host+"/livez", nil)
			require.NoError(t, err)
			res, err := s.http.Do(req)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, res.Body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Equal(t, http.StatusOK, res.StatusCode)
		}
		if http2 {
			require.Less(t, reused, 19, "GOAWAY may be late for the next request")
		} else {
			require.Equal(t, 19, reused)
		}
	}
}
