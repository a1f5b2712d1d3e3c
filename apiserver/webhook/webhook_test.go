package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// start starts a server with a certificate for the names.
func start(t *testing.T, ca *pki.CA, h http.HandlerFunc, names ...string) *httptest.Server {
	t.Helper()
	cert, err := ca.Server(names...)
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // handshake errors
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func newCA(t *testing.T) *pki.CA {
	t.Helper()
	ca, err := pki.NewCA()
	require.NoError(t, err)
	return ca
}

func client(t *testing.T, o Options) *Client {
	t.Helper()
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

// echo answers with the request's method, host, path and body.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = fmt.Fprintf(w, "%s %s %s %s", r.Method, r.Host, r.URL.Path, body)
}

func TestCall_OfAURL(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	s := start(t, ca, echo, "127.0.0.1")
	answer, err := client(t, Options{}).Call(t.Context(), Target{URL: s.URL + "/at", CABundle: ca.PEM()}, []byte("{}"),
		100)
	require.NoError(t, err)
	require.Equal(t, "POST "+strings.TrimPrefix(s.URL, "https://")+" /at {}", string(answer))
}

func TestCall_OfAServiceByItsName(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	s := start(t, ca, echo, "hook.shop.svc")
	dialled := make(chan string, 1)
	c := client(t, Options{Objects: services(t, "10.1.2.3"), Dial: func(ctx context.Context, network, address string) (
		net.Conn, error) {
		dialled <- address
		return (&net.Dialer{}).DialContext(ctx, network, s.Listener.Addr().String())
	}})
	target := Target{Service: &Service{Namespace: "shop", Name: "hook", Path: "/a/b", Port: 8443}, CABundle: ca.PEM()}
	answer, err := c.Call(t.Context(), target, nil, 100)
	require.NoError(t, err)
	require.Equal(t, "POST hook.shop.svc:8443 /a/b ", string(answer))
	require.Equal(t, "10.1.2.3:9443", <-dialled)
	require.Equal(t, "https://hook.shop.svc:8443/a/b", target.Name())
}

func TestCall_VerifiesTheServer(t *testing.T) {
	t.Parallel()
	ca, other := newCA(t), newCA(t)
	s := start(t, ca, echo, "127.0.0.1")
	c := client(t, Options{Objects: services(t, "127.0.0.1"), Dial: func(ctx context.Context, network, _ string) (net.Conn,
		error) {
		return (&net.Dialer{}).DialContext(ctx, network, s.Listener.Addr().String())
	}})
	for want, target := range map[string]Target{
		"certificate signed by unknown authority": {URL: s.URL, CABundle: other.PEM()},
		"x509: certificate":                       {URL: s.URL}, // not in this system's certificates
		"unable to load root certificates":        {URL: s.URL, CABundle: []byte("none")},
		"https URL or a service":                  {URL: "http://127.0.0.1"},
		"https URL or a service ":                 {},
		"path is not valid":                       {Service: &Service{Namespace: "shop", Name: "hook", Path: "//other/x", Port: 8443}},
		"wanted to match hook.shop.svc":           {Service: &Service{Namespace: "shop", Name: "hook", Port: 8443}, CABundle: ca.PEM()},
	} {
		_, err := c.Call(t.Context(), target, nil, 100)
		require.ErrorContains(t, err, strings.TrimSpace(want))
	}
	// A changed bundle takes effect at once, even if connections exist.
	_, err := c.Call(t.Context(), Target{URL: s.URL, CABundle: ca.PEM()}, nil, 100)
	require.NoError(t, err)
	_, err = c.Call(t.Context(), Target{URL: s.URL, CABundle: other.PEM()}, nil, 100)
	require.Error(t, err)
}

func TestCall_LimitsAnswers(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	var followed atomic.Bool
	s := start(t, ca, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/fits":
			_, _ = w.Write(make([]byte, 1000))
		case "/long":
			_, _ = w.Write(make([]byte, 1001))
		case "/headers":
			w.Header().Set("Long", strings.Repeat("x", 1<<20))
		case "/redirect":
			http.Redirect(w, r, "/followed", http.StatusPermanentRedirect)
		case "/followed":
			followed.Store(true)
		case "/fails":
			w.WriteHeader(http.StatusBadGateway)
			_, _ = w.Write([]byte(strings.Repeat("no\n", 1000)))
		}
	}, "127.0.0.1")
	c := client(t, Options{})
	call := func(path string) (int, error) {
		answer, err := c.Call(t.Context(), Target{URL: s.URL + path, CABundle: ca.PEM()}, []byte("{}"), 1000)
		return len(answer), err
	}
	n, err := call("/fits")
	require.NoError(t, err)
	require.Equal(t, 1000, n)
	_, err = call("/long")
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = call("/headers")
	require.ErrorContains(t, err, "headers exceeded 65536 bytes")
	_, err = call("/redirect")
	var failed *CodeError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, http.StatusPermanentRedirect, failed.Code)
	require.False(t, followed.Load())
	_, err = call("/fails")
	require.ErrorContains(t, err, `an error on the server ("no\nno\n`)
	require.Less(t, len(err.Error()), 600)
}

// TestCodeError_HasTheMessagesOfKubernetesAndTheServer checks for the message of kube-apiserver's client, followed
// by the webhook's own message if that is not part of it.
func TestCodeError_HasTheMessagesOfKubernetesAndTheServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code       int
		body, want string
	}{
		{422, "no v1\n", `the server rejected our request due to an error in our request: "no v1"`},
		{422, "", "the server rejected our request due to an error in our request"},
		{400, "bad\nrequest", `the server rejected our request for an unknown reason: "bad\nrequest"`},
		{404, "", "the server could not find the requested resource"},
		{403, "not you", "not you"},
		{500, "ouch", `an error on the server ("ouch") has prevented the request from succeeding`},
		{502, "", `an error on the server ("unknown") has prevented the request from succeeding`},
		{503, "later", `the server is currently unable to handle the request: "later"`},
	} {
		require.Equal(t, c.want, (&CodeError{Code: c.code, Body: c.body}).Error())
	}
}

func TestCall_EndsWithItsRequest(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	arrived := make(chan time.Duration, 1)
	s := start(t, ca, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- 0
		<-r.Context().Done()
	}, "127.0.0.1")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	_, err := client(t, Options{}).Call(ctx, Target{URL: s.URL, CABundle: ca.PEM()}, nil, 100)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, s.URL)
}

// Connections are kept for the next call, up to a limit.
func TestCall_KeepsAndLimitsConnections(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	var mu sync.Mutex
	open, highest := map[string]bool{}, 0
	release := make(chan struct{})
	s := start(t, ca, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		open[r.RemoteAddr] = true
		highest = len(open)
		mu.Unlock()
		if r.URL.Path == "/wait" {
			<-release
		}
	}, "127.0.0.1")
	c := client(t, Options{})
	for range 10 {
		_, err := c.Call(t.Context(), Target{URL: s.URL, CABundle: ca.PEM()}, nil, 100)
		require.NoError(t, err)
	}
	require.Equal(t, 1, highest)
	var calls sync.WaitGroup
	for range 2 * maxConns {
		calls.Go(func() {
			_, err := c.Call(t.Context(), Target{URL: s.URL + "/wait", CABundle: ca.PEM()}, nil, 100)
			require.NoError(t, err)
		})
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return highest == maxConns
	}, time.Minute, time.Millisecond)
	close(release)
	calls.Wait()
}

// The most recently used connections are kept, regardless of the number of targets.
func TestTransports_AreLimited(t *testing.T) {
	t.Parallel()
	c := client(t, Options{})
	first, err := c.transport("a", nil, nil)
	require.NoError(t, err)
	for i := range 2 * maxTransports {
		_, err := c.transport(fmt.Sprint(i), nil, nil)
		require.NoError(t, err)
		again, err := c.transport("a", nil, nil)
		require.NoError(t, err)
		require.Same(t, first, again)
	}
	require.Len(t, c.transports, maxTransports)
}

// The proxy from the environment applies to URLs only, since it cannot reach pods.
func TestTransports_UseTheProxyForURLsOnly(t *testing.T) {
	t.Parallel()
	c := client(t, Options{})
	ofService, err := c.transport("hook.shop.svc", nil, nil)
	require.NoError(t, err)
	require.Nil(t, ofService.Proxy)
	ofURL, err := c.transport("", nil, nil)
	require.NoError(t, err)
	require.NotNil(t, ofURL.Proxy)
}
