package apiserver_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
	"github.com/coxswain-dev/coxswain/storage"
)

// mayAll gives users all rights, without the group system:masters.
func (s *server) mayAll(users ...string) {
	for _, user := range users {
		s.bind("cluster-admin", m{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"})
	}
}

func (s *server) bind(role string, subject m) {
	s.t.Helper()
	s.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", m{
		"metadata": m{"generateName": "test-"}, "subjects": []any{subject},
		"roleRef": m{"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"},
	})
}

func TestInflight_ExcessRequestsGet429(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{Limits: apiserver.Limits{
		RequestsInFlight: 1, MutatingRequestsInFlight: 1, NoPriorityAndFairness: true,
	}})
	a.mayAll("jane") // a denial would make the authorizer read etcd again
	jane := a.as("jane")
	full := func(method string) bool {
		return jane.do(method, configMaps+"?resourceVersion=0", nil).code == http.StatusTooManyRequests
	}

	waiting, entered, release := sync.WaitGroup{}, make(chan struct{}), make(chan struct{})
	a.backend.set(func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
		if strings.HasSuffix(writes[0].Key.Collection, "/configmaps") { // the server itself writes as well
			entered <- struct{}{}
			<-release
		}
		return a.backend.Backend.Commit(ctx, writes)
	}, nil)
	waiting.Go(func() { a.create(configMaps, configMap("a")) })
	<-entered
	refused := jane.do(http.MethodPost, configMaps, configMap("b"))
	refused.refused(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests,
		"Too many requests, please try again later.")
	require.Equal(t, "1", refused.header.Get("Retry-After"))
	require.False(t, full(http.MethodGet), "there is room for requests of the other sort")
	// Members of system:masters are served, so that they can repair the server.
	a.do(http.MethodPost, configMaps+"?dryRun=All", configMap("b")).ok(http.StatusCreated)
	close(release)
	waiting.Wait()
	a.backend.set(nil, nil)
	require.False(t, full(http.MethodPost))

	release = make(chan struct{})
	var first atomic.Bool
	a.backend.onQuestion(func() {
		if first.CompareAndSwap(false, true) {
			entered <- struct{}{}
			<-release
		}
	})
	waiting.Go(func() { a.get(configMaps).ok(http.StatusOK) })
	<-entered
	// The read that is held may be another request's; this one waits behind it.
	require.Eventually(t, func() bool { return full(http.MethodGet) }, patience, tick)
	require.True(t, full(http.MethodGet))
	require.False(t, full(http.MethodPost))
	a.get(configMaps + "?resourceVersion=0").ok(http.StatusOK)
	jane.get("/livez").ok(http.StatusOK)
	watch := jane.send(http.MethodGet, configMaps+"?watch=1&resourceVersion=0", nil)
	require.NotEqual(t, http.StatusTooManyRequests, watch.StatusCode)
	require.NoError(t, watch.Body.Close())
	close(release)
	waiting.Wait()
	require.False(t, full(http.MethodGet))
}

func TestWatch_IsLimitedPerUser(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{Limits: apiserver.Limits{WatchesPerUser: 2}})
	a.mayAll("jane", "bob")
	jane, bob := a.as("jane"), a.as("bob")
	const path = configMaps + "?watch=1"
	first := jane.watch(path)
	jane.watch(path)
	jane.get(path).refused(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "Too many requests")
	bob.watch(path)
	for range 3 {
		a.watch(path)
	}
	require.NoError(t, first.res.Body.Close())
	require.Eventually(t, func() bool {
		res := jane.send(http.MethodGet, path, nil)
		t.Cleanup(func() { _ = res.Body.Close() })
		return res.StatusCode == http.StatusOK
	}, patience, tick)
}

func TestConnections_AreLimitedPerClient(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{Limits: apiserver.Limits{ConnectionsPerClient: 4}})
	a.get("/readyz").ok(http.StatusOK) // the first of four
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(a.config.Host, "https://"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	conns := []net.Conn{dial(), dial(), dial()}
	_ = conns[0]
	requireHangUp(t, dial())
	a.get("/readyz").ok(http.StatusOK)
	require.NoError(t, conns[1].Close())
	require.Eventually(t, func() bool {
		other := httpClient(t, a.config, false)
		res, err := other.Get(a.config.Host + "/readyz")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK
	}, patience, tick)
}

// requireHangUp requires that the server closes a connection.
func requireHangUp(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(3*patience)))
	_, err := io.Copy(io.Discard, conn)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server lets a slow client hold a connection")
}

// Slow Loris: connections that send a part of a request, or of the TLS handshake, and wait.
func TestConnections_SlowOnesAreClosed(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.get("/readyz").ok(http.StatusOK)
	address := strings.TrimPrefix(s.config.Host, "https://")
	var slow sync.WaitGroup
	conns := make(chan net.Conn, 300)
	for i := range cap(conns) {
		slow.Go(func() {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				return
			}
			switch i % 3 {
			case 0: // send no byte
			case 1:
				_, _ = io.WriteString(conn, "\x16\x03\x01")
			default:
				secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
				_, _ = io.WriteString(secure, "GET /api/v1/pods HTTP/1.1\r\nHost: slow\r\nX-")
				conn = secure
			}
			conns <- conn
		})
	}
	slow.Wait()
	close(conns)
	s.create(configMaps, configMap("meanwhile"))
	for conn := range conns {
		requireHangUp(t, conn)
		_ = conn.Close()
	}
	s.get(configMaps + "/meanwhile").ok(http.StatusOK)
}

func TestBody_MustArriveInTime(t *testing.T) {
	t.Parallel()
	for name, http2 := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: 10 * time.Second})
			body, rest := io.Pipe()
			defer rest.Close()
			go func() { _, _ = io.WriteString(rest, `{"metadata":`) }()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.config.Host+configMaps, body)
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/json")
			res, err := httpClient(t, a.config, http2).Do(req)
			require.NoError(t, err)
			defer res.Body.Close()
			require.Equal(t, http.StatusGatewayTimeout, res.StatusCode)
		})
	}
}

// A body that is forwarded has no deadline, but only if the client is authorized to send it.
func TestConnect_UnauthorizedBodyIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(backend.Close)
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, backend.Listener.Addr().String())
	}
	a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: time.Second,
		Kubelet: proxy.KubeletOptions{Dial: dial}})
	a.create(accounts, m{"metadata": m{"name": "default"}})
	a.create(pods, pod("a"))
	a.patch(pods+"/a/status", mergePatch,
		m{"status": m{"phase": "Running", "podIP": "10.0.0.1", "podIPs": []m{{"ip": "10.0.0.1"}}}}).ok(http.StatusOK)
	body, more := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.config.Host+pods+"/a/proxy/", body)
	require.NoError(t, err)
	var echo []byte
	var sent sync.WaitGroup
	sent.Go(func() {
		res, err := httpClient(t, a.config, false).Do(req)
		if assert.NoError(t, err) {
			defer res.Body.Close()
			echo, err = io.ReadAll(res.Body)
			assert.NoError(t, err)
		}
	})
	_, err = io.WriteString(more, "slow ")
	require.NoError(t, err)

	for name, path := range map[string]string{"exec": pods + "/a/exec?command=id", "proxy": pods + "/a/proxy/",
		"node": nodes + "/n/proxy/run"} {
		t.Run(name, func(t *testing.T) {
			conn, err := tls.Dial("tcp", strings.TrimPrefix(a.config.Host, "https://"),
				&tls.Config{InsecureSkipVerify: true})
			require.NoError(t, err)
			defer conn.Close()
			_, err = io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nslow")
			require.NoError(t, err)
			requireHangUp(t, conn)
		})
	}
	_, err = io.WriteString(more, "but sure")
	require.NoError(t, err)
	require.NoError(t, more.Close())
	sent.Wait()
	require.Equal(t, "slow but sure", string(echo))
}

func TestHeaders_TooLongAreRejected(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, http2 := range protocols {
		t.Run(name, func(t *testing.T) {
			client := httpClient(t, s.config, http2)
			for _, path := range []string{"/version?q=" + strings.Repeat("x", 100<<10), "/version"} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.config.Host+path, nil)
				require.NoError(t, err)
				if path == "/version" {
					req.Header.Set("X-Long", strings.Repeat("x", 100<<10))
				}
				res, err := client.Do(req)
				if err != nil {
					continue // the server may close the connection before the client has sent all of it
				}
				_ = res.Body.Close()
				require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, res.StatusCode)
			}
			s.get("/version").ok(http.StatusOK)
		})
	}
}

// A request that two parsers could read differently is rejected.
func TestHeaders_SmugglingIsRejected(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, c := range map[string]struct {
		headers string
		code    int
	}{
		"two lengths":            {"Content-Length: 0\r\nContent-Length: 7\r\n", 400},
		"a signed length":        {"Content-Length: +7\r\n", 400},
		"an unknown coding":      {"Transfer-Encoding: xchunked\r\n", 501},
		"two codings":            {"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", 501},
		"a blank before a colon": {"Impersonate-User : jane\r\n", 400},
		"NUL":                    {"X-A: \x00\r\n", 400},
		"a bare CR":              {"X-A: a\rImpersonate-User: jane\r\n", 400},
		"two hosts":              {"Host: other\r\n", 400},
		"two users":              {"Impersonate-User: jane\r\nImpersonate-User: bob\r\n", 400},
		"somebody else's proxy":  {"X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n", 403},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := tls.Dial("tcp", strings.TrimPrefix(s.config.Host, "https://"),
				certificatesOf(t, s, name != "somebody else's proxy"))
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
			_, err = io.WriteString(conn, "GET /api HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"+
				c.headers+"\r\n")
			require.NoError(t, err)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			_ = res.Body.Close()
			require.Equal(t, c.code, res.StatusCode, "%v", res.Header)
		})
	}
	require.Equal(t, "kubernetes-admin", s.do(http.MethodPost, whoAmI,
		m{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}, "Impersonate_User", "jane").at(
		"status", "userInfo", "username"))
}

// certificatesOf returns a client's configuration of TLS for HTTP/1.1.
func certificatesOf(t *testing.T, s *server, credential bool) *tls.Config {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}
	if credential {
		cert, err := tls.X509KeyPair(s.config.CertData, s.config.KeyData)
		require.NoError(t, err)
		config.Certificates = []tls.Certificate{cert}
	}
	return config
}

func TestTLS_RejectsOldVersionsAndWeakCiphers(t *testing.T) {
	t.Parallel()
	s := start(t)
	address := strings.TrimPrefix(s.config.Host, "https://")
	for name, c := range map[string]struct {
		client *tls.Config
		ok     bool
	}{
		"1.3": {&tls.Config{}, true},
		"1.2": {&tls.Config{MaxVersion: tls.VersionTLS12}, true},
		"1.1": {&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, false},
		"1.2 with CBC": {&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA,
		}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.client.InsecureSkipVerify = true
			conn, err := tls.Dial("tcp", address, c.client)
			if !c.ok {
				require.Error(t, err)
				require.False(t, errors.Is(err, os.ErrDeadlineExceeded))
				return
			}
			require.NoError(t, err)
			require.NoError(t, conn.Close())
		})
	}
}

// Paths of resources may end in slashes, as in go-restful. Other paths are matched exactly.
func TestPaths_MayEndInSlashes(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps+"/", configMap("a"))
	for _, path := range []string{"/api", "/apis", "/apis/apps", "/api/v1", "/apis/apps/v1", namespaces, configMaps,
		configMaps + "/a", deployments} {
		want := s.get(path).ok(http.StatusOK).body
		for _, end := range []string{"/", "//"} {
			require.Equal(t, string(want), string(s.get(path+end).ok(http.StatusOK).body), path+end)
		}
	}
	s.create(deployments, deployment("web", 1))
	require.Equal(t, "Scale", s.get(deployments+"/web/scale/").ok(http.StatusOK).at("kind"))
	s.patch(configMaps+"/a/", mergePatch, m{"data": m{"a": "b"}}).ok(http.StatusOK)
	s.as("jane").get(configMaps+"/a/").refused(http.StatusForbidden, metav1.StatusReasonForbidden,
		`cannot get resource "configmaps" in API group "" in the namespace "default"`)
	s.delete(configMaps+"/a/", nil).ok(http.StatusOK)
	s.gone(configMaps + "/a")
	s.get("/healthz/").ok(http.StatusNotFound)
	s.get("/openapi/v2/").ok(http.StatusNotFound)
}
