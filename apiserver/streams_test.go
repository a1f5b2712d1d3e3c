package apiserver_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

// rawHTTP2 opens a connection, sends n GETs, and does not read the answers. A caller that reads them gets an error if
// they do not come.
func rawHTTP2(t *testing.T, s *server, path string, n int) (*http2.Framer, *tls.Conn) {
	t.Helper()
	config, err := rest.TLSConfigFor(s.config)
	require.NoError(t, err)
	config.NextProtos = []string{"h2"}
	host, err := url.Parse(s.config.Host)
	require.NoError(t, err)
	conn, err := tls.Dial("tcp", host.Host, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	var fields, requests bytes.Buffer
	encoder := hpack.NewEncoder(&fields)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", host.Host}, {":path", path}} {
		require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true}))
	}
	requests.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&requests, conn)
	require.NoError(t, framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize}))
	for i := range n {
		require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1),
			BlockFragment: fields.Bytes(), EndStream: true, EndHeaders: true}))
	}
	_, err = conn.Write(requests.Bytes())
	require.NoError(t, err)
	return framer, conn
}

// One connection may have only as many requests as there is memory for. Other connections are served.
func TestStreams_AreBoundedByMemory(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: unhurried,
		Limits: apiserver.Limits{RequestMemory: 2 << 20}})
	a.mayAll("jane", "many")
	jane, many := a.as("jane"), a.as("many")
	a.create(configMaps, configMap("a"))
	const room = 10 // of 48 KiB each, in a quarter of the budget
	framer, conn := rawHTTP2(t, many, configMaps+"?watch=1&resourceVersion=0", 3*room)
	for reset := 0; reset < 2*room; {
		frame, err := framer.ReadFrame()
		require.NoError(t, err)
		if _, is := frame.(*http2.RSTStreamFrame); is {
			reset++
		}
	}
	require.Eventually(t, func() bool { return a.held() > 64e3 }, patience, tick,
		"streams reserve the memory of their answers")
	jane.get(configMaps).ok(200)
	require.Contains(t, string(a.get("/metrics").ok(200).body),
		fmt.Sprintf("\ncoxswain_request_memory_refused_total %d\n", 2*room))
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool { return a.held() == 0 }, patience, tick)
	again, _ := rawHTTP2(t, many, configMaps+"?watch=1&resourceVersion=0", room)
	for answered := 0; answered < 1; {
		frame, err := again.ReadFrame()
		require.NoError(t, err)
		require.NotEqual(t, http2.FrameRSTStream, frame.Header().Type)
		if frame.Header().Type == http2.FrameHeaders {
			answered++
		}
	}
}

// Without a limit of the process, the machine's memory is the limit.
func TestStreams_AreBoundedWithoutAMemoryLimit(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: unhurried,
		Limits: apiserver.Limits{RequestMemory: -1, StreamMemory: 512 << 10}})
	a.mayAll("jane", "many")
	a.create(configMaps, configMap("a")) // an idle watch without events would no longer count
	const room = 10                      // of 48 KiB each
	framer, conn := rawHTTP2(t, a.as("many"), configMaps+"?watch=1&resourceVersion=0", 5*room)
	for reset := 0; reset < 4*room; {
		frame, err := framer.ReadFrame()
		require.NoError(t, err)
		if frame.Header().Type == http2.FrameRSTStream {
			reset++
		}
	}
	a.as("jane").get(configMaps).ok(200)
	require.NoError(t, conn.Close())
}

func TestStreams_PerConnectionAreLimited(t *testing.T) {
	t.Parallel()
	for most, o := range map[uint32]apiserver.Limits{100: {}, 7: {StreamsPerConnection: 7}} {
		a := assemble(t, builtin.Kinds(), apiserver.Options{Limits: o})
		framer, _ := rawHTTP2(t, a.server, "/livez", 1)
		for received := false; !received; {
			frame, err := framer.ReadFrame()
			require.NoError(t, err)
			if settings, is := frame.(*http2.SettingsFrame); is && !settings.IsAck() {
				value, ok := settings.Value(http2.SettingMaxConcurrentStreams)
				require.True(t, ok)
				require.Equal(t, most, value)
				received = true
			}
		}
	}
}

// As in Kubernetes (UnauthenticatedHTTP2DOSMitigation): HTTP/2 makes requests cheap for a client, so unauthenticated
// clients may send one request per connection.
func TestHTTP2_UnauthenticatedClientsHaveOneRequestPerConnection(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	nobody := rest.AnonymousClientConfig(a.config)
	forged := rest.CopyConfig(nobody)
	forged.BearerToken = "made-up"
	for name, c := range map[string]struct {
		config *rest.Config
		path   string
		code   int
		ends   bool
	}{
		"anonymous":                {nobody, "/livez", 200, true},
		"anonymous without rights": {nobody, secrets, 403, true},
		"refused credential":       {forged, "/livez", 401, true},
		"user":                     {a.config, "/livez", 200, false},
		"user without rights":      {a.as("jane").config, secrets, 403, false},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.config.Host, "https://"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		tc, err := rest.TLSConfigFor(c.config)
		require.NoError(t, err)
		tc.NextProtos, tc.ServerName = []string{"h2"}, "127.0.0.1"
		over, err := (&http2.Transport{}).NewClientConn(tls.Client(conn, tc))
		require.NoError(t, err)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.config.Host+c.path, nil)
		require.NoError(t, err)
		if c.config.BearerToken != "" {
			r.Header.Set("Authorization", "Bearer "+c.config.BearerToken)
		}
		res, err := over.RoundTrip(r)
		require.NoError(t, err, name)
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, c.code, res.StatusCode, name)
		if !c.ends {
			require.NoError(t, over.Ping(t.Context()), name)
			require.True(t, over.CanTakeNewRequest(), name)
			continue
		}
		require.Eventually(t, func() bool { return over.State().Closed || over.State().Closing }, patience, tick, name)
	}
}

// net/http would answer it by itself, with 200 and without authentication.
func TestOptions_OfTheServerRequireAuthentication(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	nobody := rest.AnonymousClientConfig(a.config)
	for name, c := range map[string]struct {
		config *rest.Config
		header string
		code   int
	}{
		"anonymous": {nobody, "", 403}, "refused credential": {nobody, "Authorization: Bearer made-up\r\n", 401},
		"user without rights": {a.as("jane").config, "", 403}, "administrator": {a.config, "", 404},
	} {
		tc, err := rest.TLSConfigFor(c.config)
		require.NoError(t, err)
		conn, err := tls.Dial("tcp", strings.TrimPrefix(c.config.Host, "https://"), tc)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: a\r\n"+c.header+"\r\n")
		require.NoError(t, err)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, name)
		require.NoError(t, res.Body.Close())
		require.Equal(t, c.code, res.StatusCode, name)
	}
}

// largePaths have answers larger than the buffers of net/http. None of them is a watch, even with the parameter watch.
var largePaths = []string{"/openapi/v2", "/openapi/v2?watch=1", "/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1?watch=true",
	"/metrics", "/metrics?watch=1", "/apis/apps/v1?watch=1", secrets + "/large", secrets + "/large?watch=1",
	secrets, "/api/v1/namespaces/default/status?watch=1"}

func startUnread(t *testing.T, o apiserver.Options) *assembly {
	a := assemble(t, builtin.Kinds(), o)
	a.mayAll("jane", "many")
	a.create(secrets, m{"metadata": m{"name": "large"}, "stringData": m{"k": strings.Repeat("x", 20_000)}})
	a.patch("/api/v1/namespaces/default", mergePatch, m{"metadata": m{"annotations": m{"a": strings.Repeat("x", 20_000)}}}).
		ok(200)
	return a
}

// An answer that its client does not read holds no seat, on any path, so that others can use it.
func TestStreams_UnreadAnswersGiveTheirSeatsBack(t *testing.T) {
	t.Parallel()
	a := startUnread(t, apiserver.Options{RequestTimeout: unhurried, Limits: apiserver.Limits{RequestsInFlight: 2}})
	jane, many := a.as("jane"), a.as("many")
	for _, path := range largePaths {
		framer, conn := rawHTTP2(t, many, path, 8)
		for answered := 0; answered < 8; { // all are answered, since each releases its seat to the next
			frame, err := framer.ReadFrame()
			require.NoError(t, err, path)
			if frame.Header().Type == http2.FrameHeaders {
				answered++
			}
		}
		jane.get(configMaps).ok(200)
		require.NoError(t, conn.Close())
	}
}

func TestStreams_UnreadAnswersEnd(t *testing.T) {
	t.Parallel()
	a := startUnread(t, apiserver.Options{RequestTimeout: 2 * time.Second})
	for _, path := range largePaths {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			framer, _ := rawHTTP2(t, a.as("many").within(t), path, 1)
			for {
				frame, err := framer.ReadFrame()
				if err != nil || frame.Header().Type == http2.FrameRSTStream ||
					frame.Header().Type == http2.FrameGoAway {
					return // otherwise the test's timeout ends it
				}
			}
		})
	}
}
