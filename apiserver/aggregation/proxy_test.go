package aggregation_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver"
)

func TestPass_SendsRequestsForTheUser(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{true, false} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			t.Parallel()
			c, e := extended(t, http2)
			got := c.get("/apis/wardle.example.com/v1/namespaces/default/flunders/a?x=1;2&y=%26", "Authorization", "Basic YTpi")
			require.Equal(t, http.StatusOK, got.code, got.body)
			var echo struct {
				Path, Query, User string
				Header            http.Header
			}
			require.NoError(t, json.Unmarshal([]byte(got.body), &echo))
			require.Equal(t, "/apis/wardle.example.com/v1/namespaces/default/flunders/a", echo.Path)
			require.Equal(t, "y=%26", echo.Query)
			require.Equal(t, "admin", echo.User)
			require.Equal(t, []string{"system:masters", "system:authenticated"}, echo.Header["X-Remote-Group"])
			require.NotContains(t, echo.Header, "Authorization")
			require.Equal(t, "/apis/wardle.example.com/v1/namespaces/default/flunders/a",
				echo.Header.Get("X-Forwarded-Uri"))
			seen := e.requests()
			require.Len(t, seen, 1)
			require.Equal(t, "front-proxy-client", seen[0].TLS.PeerCertificates[0].Subject.CommonName)
			require.Equal(t, http2, seen[0].ProtoMajor == 2)
			require.Equal(t, http.StatusOK, c.get("/apis/wardle.example.com/v1").code)
		})
	}
}

// Headers that claim an identity do not reach the other server, however they are spelled.
func TestPass_RemovesClaimsOfTheClient(t *testing.T) {
	t.Parallel()
	c, e := extended(t, true)
	_, err := c.core.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "all"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "mallory"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	mallory := c.client("mallory", false, "dev")
	const path = "/apis/wardle.example.com/v1/flunders"
	for name, headers := range map[string][]string{
		"plain":         {"X-Remote-User", "root", "X-Remote-Group", "system:masters", "X-Remote-Uid", "1"},
		"case":          {"x-remote-user", "root", "X-REMOTE-GROUP", "system:masters", "x-ReMoTe-ExTrA-Scope", "all"},
		"underscore":    {"X_Remote_User", "root", "x_remote_group", "system:masters", "X-Remote_Extra-A", "b"},
		"hop by hop":    {"Connection", "X-Remote-User, X-Remote-Group, Via", "X-Remote-User", "root"},
		"keep-alive":    {"Connection", "keep-alive", "Keep-Alive", "X-Remote-User", "Proxy-Connection", "x-remote-user"},
		"credential":    {"Authorization", "", "authorization", "Bearer "},
		"impersonation": {"impersonate_user", "root", "Impersonate_Group", "system:masters"},
	} {
		got := c.do(mallory, http.MethodPost, path, []byte("{}"), headers...)
		require.Equal(t, http.StatusOK, got.code, "%s: %s", name, got.body)
		seen := e.requests()
		require.Len(t, seen, 1, name)
		for header, values := range seen[0].Header {
			switch plain := strings.ReplaceAll(strings.ToLower(header), "_", "-"); {
			case plain == "x-remote-user":
				require.Equal(t, []string{"mallory"}, values, name)
				require.Equal(t, "X-Remote-User", header)
			case plain == "x-remote-group":
				require.Equal(t, []string{"dev", "system:authenticated"}, values, name)
				require.Equal(t, "X-Remote-Group", header)
			default:
				require.NotContains(t, plain, "x-remote-", name)
				require.NotContains(t, plain, "impersonate", name)
				require.NotEqual(t, "authorization", plain, name)
			}
		}
		require.NotEmpty(t, seen[0].Header["X-Remote-User"], name)
	}
}

// A trailer is a header that follows the body. Some servers treat it as an ordinary header.
func TestPass_RemovesTrailersOfTheClient(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{true, false} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			t.Parallel()
			c, e := extended(t, http2)
			trailers := make(chan http.Header, 1)
			e.answers(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body) // fills in r.Trailer
				if string(body) == "{}" {
					trailers <- r.Trailer
				}
				_, _ = io.WriteString(w, "{}")
			})
			body := struct{ io.Reader }{strings.NewReader("{}")} // of unknown length, so sent in chunks
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				c.Config.Host+"/apis/wardle.example.com/v1/flunders", body)
			require.NoError(t, err)
			r.Trailer = http.Header{"X-Remote-User": {"root"}}
			res, err := c.client("", http2).Do(r)
			require.NoError(t, err)
			defer res.Body.Close()
			require.Equal(t, http.StatusOK, res.StatusCode)
			require.Empty(t, <-trailers)
		})
	}
}

func TestPass_RequiresLocalAuthorization(t *testing.T) {
	t.Parallel()
	c, e := extended(t, true)
	jane := c.client("jane", true)
	for path, words := range map[string]string{
		"/namespaces/default/flunders":     `cannot list resource "flunders" in API group "wardle.example.com" in the namespace "default"`,
		"/flunders?watch=1":                `cannot watch resource "flunders" in API group "wardle.example.com" at the cluster scope`,
		"/namespaces/x/flunders/a/exec":    `cannot get resource "flunders/exec" in API group "wardle.example.com" in the namespace "x"`,
		"/watch/namespaces/x/flunders":     `cannot watch resource "flunders" in API group "wardle.example.com" in the namespace "x"`,
		"/namespaces/x/status":             `cannot get resource "namespaces/status" in API group "wardle.example.com" in the namespace "x"`,
		"/proxy/namespaces/x/flunders/a/b": `cannot proxy resource "flunders" in API group "wardle.example.com" in the namespace "x"`,
	} {
		got := c.do(jane, http.MethodGet, "/apis/wardle.example.com/v1"+path, nil)
		require.Equal(t, http.StatusForbidden, got.code, path)
		require.Contains(t, strings.ReplaceAll(got.body, `\"`, `"`), words)
	}
	require.Empty(t, e.requests())
	require.Equal(t, http.StatusOK, c.do(jane, http.MethodGet, "/apis/wardle.example.com/v1", nil).code, "discovery")
	got := c.do(c.client("jane", true), http.MethodDelete, "/apis/wardle.example.com/v1/flunders", nil)
	require.Contains(t, got.body, "cannot deletecollection resource")
	require.Equal(t, http.StatusInternalServerError, c.get("/apis/wardle.example.com/v1/watch").code)
}

func TestPass_StreamsWatches(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{true, false} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			t.Parallel()
			c, e := extended(t, http2)
			next, ended := make(chan string), make(chan struct{})
			e.answers(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Get("watch") == "" {
					return
				}
				defer close(ended)
				for {
					select {
					case line := <-next:
						_, _ = io.WriteString(w, line+"\n")
						_ = http.NewResponseController(w).Flush()
					case <-r.Context().Done():
						return
					}
				}
			})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
				c.Config.Host+"/apis/wardle.example.com/v1/flunders?watch=true", http.NoBody)
			require.NoError(t, err)
			go func() { next <- "one" }()
			res, err := c.http.Do(req)
			require.NoError(t, err)
			lines := bufio.NewScanner(res.Body)
			for i, want := range []string{"one", "two", "three"} {
				if i > 0 {
					next <- want
				}
				require.True(t, lines.Scan())
				require.Equal(t, want, lines.Text())
			}
			require.NoError(t, res.Body.Close())
			select {
			case <-ended: // the client has left
			case <-time.After(patience):
				t.Fatal("the other server's request has not ended")
			}
		})
	}
}

// A watch ends when the APIService is deleted.
func TestPass_StreamsEndWithTheirAPIService(t *testing.T) {
	t.Parallel()
	c, e := extended(t, true)
	e.answers(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		c.Config.Host+"/apis/wardle.example.com/v1/flunders?watch=true", http.NoBody)
	require.NoError(t, err)
	res, err := c.http.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	require.NoError(t, c.registration.ApiregistrationV1().APIServices().Delete(t.Context(), "v1.wardle.example.com",
		metav1.DeleteOptions{}))
	_, _ = io.ReadAll(res.Body)
	require.Eventually(t, func() bool { return c.get("/apis/wardle.example.com/v1").code == http.StatusNotFound }, patience,
		tick)
}

func TestPass_Upgrades(t *testing.T) {
	t.Parallel()
	c, e := extended(t, true)
	e.answers(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "SPDY/3.1" {
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		line, _ := buffered.ReadString('\n')
		_, _ = io.WriteString(conn, "echo "+r.Header.Get("X-Remote-User")+" "+line)
	})
	conn := c.dial()
	defer conn.Close()
	_, err := io.WriteString(conn, "POST /apis/wardle.example.com/v1/namespaces/default/flunders/a/exec HTTP/1.1\r\n"+
		"Host: x\r\nConnection: Upgrade, X-Remote-User\r\nUpgrade: SPDY/3.1\r\nX-Remote-User: root\r\n\r\n")
	require.NoError(t, err)
	from := bufio.NewReader(conn)
	res, err := http.ReadResponse(from, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
	_, err = io.WriteString(conn, "hello\n")
	require.NoError(t, err)
	line, err := from.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "echo admin hello\n", line)
	require.NoError(t, res.Body.Close())
}

func (c *cluster) dial() net.Conn {
	c.t.Helper()
	transport := c.client("", false).Transport.(*http.Transport)
	conn, err := (&netDialer{transport}).dial(strings.TrimPrefix(c.Config.Host, "https://"))
	require.NoError(c.t, err)
	return conn
}

func TestPass_Refusals(t *testing.T) {
	t.Parallel()
	c, e := extended(t, true)
	e.answers(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/moved"):
			http.Redirect(w, r, "https://10.0.0.1/", http.StatusFound)
		case strings.HasSuffix(r.URL.Path, "/large"):
			w.Header().Set("X-Large", strings.Repeat("x", 300<<10))
		case strings.HasSuffix(r.URL.Path, "/cut"):
			panic(http.ErrAbortHandler)
		default:
			_, _ = io.Copy(io.Discard, r.Body)
		}
	})
	const under = "/apis/wardle.example.com/v1/flunders/"
	got := c.get(under + "moved")
	require.Equal(t, http.StatusBadGateway, got.code)
	require.Equal(t, "the backend attempted to redirect this request, which is not permitted\n", got.body)
	require.Empty(t, got.header["Location"])
	for _, name := range []string{"large", "cut"} {
		got = c.get(under + name)
		require.Equal(t, http.StatusServiceUnavailable, got.code, got.body)
		require.Contains(t, got.body, "error trying to reach service: ")
	}
	got = c.do(c.http, http.MethodPut, under+"a", make([]byte, 3<<20+1))
	require.Equal(t, http.StatusRequestEntityTooLarge, got.code, got.body)
	require.Equal(t, http.StatusOK, c.do(c.http, http.MethodPut, under+"a", make([]byte, 3<<20)).code)
}

// A request that takes too long ends with an error, like one that this server answers itself.
func TestPass_HasADeadline(t *testing.T) {
	t.Parallel()
	c, e := extended(t, true)
	e.answers(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	got := c.get("/apis/wardle.example.com/v1/flunders/a?timeout=50ms")
	require.Equal(t, http.StatusGatewayTimeout, got.code, got.body)
}

// An APIService that leads back to this server does not cause an endless loop.
func TestPass_EndsLoops(t *testing.T) {
	t.Parallel()
	c := start(t, apiserver.Options{})
	e := newExtension(t, true, "loop.default.svc")
	c.service("loop", "10.1.0.9", e)
	client := c.client("", true)
	e.answers(func(w http.ResponseWriter, r *http.Request) { // passes it on, like a proxy in front of this server
		req, _ := http.NewRequestWithContext(r.Context(), r.Method, c.Config.Host+r.URL.Path, http.NoBody)
		req.Header = r.Header.Clone()
		res, err := client.Do(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body)
	})
	c.register("v1", "loop.example.com", "loop", e.ca)
	require.Eventually(t, func() bool {
		return strings.Contains(c.condition("v1.loop.example.com"), "FailedDiscoveryCheck")
	}, patience, tick)
	require.Contains(t, c.condition("v1.loop.example.com"), "508")
}
