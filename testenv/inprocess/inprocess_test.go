package inprocess_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/testenv/inprocess"
)

// direct returns a transport to a handler in this process, and its URL.
func direct(t *testing.T, h http.Handler) (http.RoundTripper, string) {
	var server inprocess.Server
	end := server.Serve(h)
	t.Cleanup(func() { end(time.Minute) })
	return server.Client(), "https://direct"
}

// network is direct over net/http's HTTP/2 and TLS.
func network(t *testing.T, h http.Handler) (http.RoundTripper, string) {
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Client().Transport, server.URL
}

// both runs a test with a connection and without one: the results must not differ.
func both(t *testing.T, h http.HandlerFunc, test func(t *testing.T, client http.RoundTripper, url string)) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, http.Handler) (http.RoundTripper, string){
		"direct": direct, "network": network,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, url := start(t, h)
			test(t, client, url)
		})
	}
}

func request(t *testing.T, ctx context.Context, method, url string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	require.NoError(t, err)
	r.Header.Set("User-Agent", "test")
	return r
}

// do sends a request, and reads the whole answer.
func do(t *testing.T, client http.RoundTripper, r *http.Request) (*http.Response, string) {
	t.Helper()
	res, err := client.RoundTrip(r)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(body)
}

func TestRoundTrip_CarriesRequestAndAnswer(t *testing.T) {
	both(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Host == "" || r.URL.Host != "" || r.TLS == nil || r.ProtoMajor != 2 || r.RemoteAddr == "" {
			t.Errorf("%v %+v", err, r)
		}
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Add("Warning", "one")
		w.Header().Add("Warning", "two")
		w.WriteHeader(http.StatusTeapot)
		w.Header().Set("Late", "is not sent")
		_, _ = w.Write([]byte(r.Method + " " + r.RequestURI + " " + r.URL.Query().Get("q") + " " +
			r.Header.Get("User-Agent") + " "))
		_, _ = w.Write(body)
		r.Header.Set("User-Agent", "is the handler's to change")
	}, func(t *testing.T, client http.RoundTripper, url string) {
		r := request(t, t.Context(), http.MethodPost, url+"/a%2Fb/c?q=%26", strings.NewReader("the body"))
		res, body := do(t, client, r)
		require.Equal(t, "POST /a%2Fb/c?q=%26 & test the body", body)
		require.Equal(t, http.StatusTeapot, res.StatusCode)
		require.Equal(t, "418 I'm a teapot", res.Status)
		require.Equal(t, "text/plain", res.Header.Get("Content-Type"))
		require.Equal(t, []string{"one", "two"}, res.Header.Values("Warning"))
		require.Empty(t, res.Header.Get("Late"))
		require.EqualValues(t, len(body), res.ContentLength)
		require.Same(t, r, res.Request)
		require.Equal(t, "test", r.Header.Get("User-Agent"))
	})
}

func TestRoundTrip_AnswersWithoutABody(t *testing.T) {
	both(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/none":
			w.WriteHeader(http.StatusNoContent)
			if _, err := w.Write([]byte("body")); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Error(err)
			}
		case "/head":
			w.Header().Set("Content-Length", "4")
			_, _ = w.Write([]byte("body"))
		}
	}, func(t *testing.T, client http.RoundTripper, url string) {
		res, body := do(t, client, request(t, t.Context(), http.MethodGet, url+"/none", nil))
		require.Equal(t, http.StatusNoContent, res.StatusCode)
		require.Empty(t, body)
		res, body = do(t, client, request(t, t.Context(), http.MethodHead, url+"/head", nil))
		require.EqualValues(t, 4, res.ContentLength)
		require.Empty(t, body)
		res, body = do(t, client, request(t, t.Context(), http.MethodGet, url+"/", nil))
		require.Equal(t, http.StatusOK, res.StatusCode)
		require.Empty(t, body)
	})
}

func TestRoundTrip_StreamsFlushedBytes(t *testing.T) {
	both(t, func(w http.ResponseWriter, r *http.Request) {
		control, turn := http.NewResponseController(w), make([]byte, 1)
		for i := byte('a'); i < 'd'; i++ {
			if err := control.Flush(); err != nil { // the first flush sends the head alone
				t.Error(err)
			}
			if _, err := io.ReadFull(r.Body, turn); err != nil {
				t.Error(err)
			}
			_, _ = w.Write([]byte{i})
		}
	}, func(t *testing.T, client http.RoundTripper, url string) {
		turns, next := io.Pipe()
		res, err := client.RoundTrip(request(t, t.Context(), http.MethodPost, url, turns))
		require.NoError(t, err)
		defer res.Body.Close()
		require.EqualValues(t, -1, res.ContentLength)
		for i := byte('a'); i < 'd'; i++ {
			_, err := next.Write([]byte{0})
			require.NoError(t, err)
			got := make([]byte, 1)
			_, err = io.ReadFull(res.Body, got)
			require.NoError(t, err)
			require.Equal(t, i, got[0])
		}
		_, err = res.Body.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	})
}

// An answer may have any length, but the bytes that the client has not read yet are limited.
func TestRoundTrip_HandlerWaitsForTheClient(t *testing.T) {
	const size = 8 << 20
	content := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	both(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := w.Write(content)
		if r.URL.Path == "/all" && (n != size || err != nil) || r.URL.Path == "/left" && (n == size || err == nil) {
			t.Errorf("%s: %d %v", r.URL.Path, n, err)
		}
	}, func(t *testing.T, client http.RoundTripper, url string) {
		_, body := do(t, client, request(t, t.Context(), http.MethodGet, url+"/all", nil))
		require.True(t, body == string(content))
		res, err := client.RoundTrip(request(t, t.Context(), http.MethodGet, url+"/left", nil))
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
	})
}

func TestRoundTrip_EndsWithItsClient(t *testing.T) {
	var silent sync.Map // by the server's address: the function with which its client leaves
	ended := make(chan struct{}, 8)
	both(t, func(w http.ResponseWriter, r *http.Request) {
		if leave, ok := silent.Load("https://" + r.Host); ok && r.URL.Path == "/silent" {
			leave.(context.CancelFunc)()
		}
		if r.URL.Path == "/open" {
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
		ended <- struct{}{}
	}, func(t *testing.T, client http.RoundTripper, url string) {
		ctx, cancel := context.WithCancel(t.Context())
		silent.Store(url, cancel)
		_, err := client.RoundTrip(request(t, ctx, http.MethodGet, url+"/silent", nil))
		require.ErrorIs(t, err, context.Canceled)
		<-ended

		ctx, cancel = context.WithCancel(t.Context())
		res, err := client.RoundTrip(request(t, ctx, http.MethodGet, url+"/open", nil))
		require.NoError(t, err)
		cancel()
		_, err = res.Body.Read(make([]byte, 1))
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, res.Body.Close())
		<-ended

		res, err = client.RoundTrip(request(t, t.Context(), http.MethodGet, url+"/open", nil))
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		<-ended
	})
}

func TestRoundTrip_IsCutByTheHandler(t *testing.T) {
	both(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/silent" {
			_, _ = w.Write([]byte("half"))
			_ = http.NewResponseController(w).Flush()
		}
		if r.URL.Path == "/stalled" {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(-time.Second))
			<-r.Context().Done()
		}
		panic(http.ErrAbortHandler)
	}, func(t *testing.T, client http.RoundTripper, url string) {
		_, err := client.RoundTrip(request(t, t.Context(), http.MethodGet, url+"/silent", nil))
		require.Error(t, err)
		for _, path := range []string{"/half", "/stalled"} {
			res, err := client.RoundTrip(request(t, t.Context(), http.MethodGet, url+path, nil))
			require.NoError(t, err)
			_, err = io.ReadAll(res.Body)
			require.Error(t, err)
			require.NotErrorIs(t, err, io.EOF)
			require.NoError(t, res.Body.Close())
		}
	})
}

func TestRoundTrip_OutlivesAPanic(t *testing.T) {
	t.Parallel()
	client, url := direct(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a mistake") }))
	_, err := client.RoundTrip(request(t, t.Context(), http.MethodGet, url, nil))
	require.ErrorContains(t, err, "a mistake")
}

func TestServe_RefusesBeforeAndAfter(t *testing.T) {
	t.Parallel()
	var server inprocess.Server
	client := server.Client()
	ask := func() error {
		closed := &closedBody{strings.NewReader("body"), make(chan struct{})}
		res, err := client.RoundTrip(request(t, t.Context(), http.MethodPost, "https://direct", closed))
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
		}
		<-closed.closed
		return err
	}
	require.ErrorIs(t, ask(), syscall.ECONNREFUSED)
	for range 2 {
		end := server.Serve(http.NotFoundHandler())
		require.NoError(t, ask())
		end(time.Minute)
		require.ErrorIs(t, ask(), syscall.ECONNREFUSED)
	}
}

// closedBody reports on a channel that it was closed.
type closedBody struct {
	io.Reader
	closed chan struct{}
}

func (c *closedBody) Close() error {
	close(c.closed)
	return nil
}

func TestServe_GivesAGrace(t *testing.T) {
	t.Parallel()
	var server inprocess.Server
	begun, answered := make(chan struct{}), make(chan struct{})
	end := server.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		select {
		case <-answered:
			_, _ = w.Write([]byte("in time"))
		case <-r.Context().Done():
		}
	}))
	ended := make(chan struct{})
	go func() {
		<-begun
		go close(answered)
		end(time.Minute)
		close(ended)
	}()
	_, body := do(t, server.Client(), request(t, t.Context(), http.MethodGet, "https://direct", nil))
	require.Equal(t, "in time", body)
	<-ended

	begun, answered = make(chan struct{}), nil
	end = server.Serve(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
	}))
	go func() {
		<-begun
		end(time.Millisecond)
	}()
	_, err := server.Client().RoundTrip(request(t, t.Context(), http.MethodGet, "https://direct", nil))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestClient_HasTheUserOfItsCertificate(t *testing.T) {
	t.Parallel()
	type remembered struct{}
	var connections int
	server := inprocess.Server{ConnContext: func(ctx context.Context) context.Context {
		connections++
		return context.WithValue(ctx, remembered{}, connections)
	}}
	defer server.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := r.TLS.PeerCertificates
		if len(shown) != 1 || shown[0].Subject.CommonName != r.Header.Get("Expected") ||
			r.Context().Value(remembered{}) == nil {
			w.WriteHeader(http.StatusForbidden)
		}
	}))(time.Minute)
	for _, name := range []string{"jane", "joe"} {
		certificate := &x509.Certificate{}
		certificate.Subject.CommonName = name
		client := server.Client(certificate)
		for range 3 {
			r := request(t, t.Context(), http.MethodGet, "https://direct", nil)
			r.Header.Set("Expected", name)
			res, _ := do(t, client, r)
			require.Equal(t, http.StatusOK, res.StatusCode)
		}
	}
	require.Equal(t, 2, connections, "one for each client")
}

func TestSetWriteDeadline_CutsAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 1)
	client, url := direct(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		control := http.NewResponseController(w)
		if control.SetWriteDeadline(time.Time{}) != nil || control.SetWriteDeadline(time.Now().Add(time.Hour)) == nil {
			t.Error("only a deadline that has passed is in force")
		}
		_ = control.Flush()
		defer time.AfterFunc(time.Millisecond, func() { _ = control.SetWriteDeadline(time.Now()) }).Stop()
		_, err := w.Write(make([]byte, 1<<20))
		failed <- err
	}))
	res, err := client.RoundTrip(request(t, t.Context(), http.MethodGet, url, nil))
	require.NoError(t, err)
	require.ErrorIs(t, <-failed, os.ErrDeadlineExceeded)
	require.NoError(t, res.Body.Close())
}

// BenchmarkRoundTrip measures the cost of a request for both sides, without a connection and with one.
func BenchmarkRoundTrip(b *testing.B) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1000)) })
	var server inprocess.Server
	defer server.Serve(handler)(time.Minute)
	b.Run("Direct", func(b *testing.B) { get(b, server.Client(), "https://direct") })
	over := httptest.NewUnstartedServer(handler)
	over.EnableHTTP2 = true
	over.StartTLS()
	defer over.Close()
	b.Run("Network", func(b *testing.B) { get(b, over.Client().Transport, over.URL) })
}

func get(b *testing.B, client http.RoundTripper, url string) {
	b.ReportAllocs()
	for b.Loop() {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
		require.NoError(b, err)
		res, err := client.RoundTrip(r)
		require.NoError(b, err)
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(b, errors.Join(err, res.Body.Close()))
	}
}
