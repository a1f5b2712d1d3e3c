package kubectllite

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// endless is a text over and over.
type endless struct {
	text string
	at   int
}

func newEndless(text string) *endless {
	return &endless{text: strings.Repeat(text, 64<<10/len(text)+1)} // because copying few bytes at a time is slow
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.text[e.at:])
	e.at = (e.at + n) % len(e.text)
	return n, nil
}

// compressed is a megabyte of x, count times, as gzip.
func compressed(t *testing.T, head string, count int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	require.NoError(t, err)
	_, err = io.WriteString(w, head)
	require.NoError(t, err)
	megabyte := bytes.Repeat([]byte("x"), 1<<20)
	for range count {
		_, err = w.Write(megabyte)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// reader reads one answer through a client that is bounded like those of a session.
func reader(t *testing.T, b *bodies, path string, code int, body io.Reader) (int64, error) {
	t.Helper()
	config := &rest.Config{Host: "http://server",
		Transport: transportFunc(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: code, Body: io.NopCloser(body), Request: r, Header: http.Header{}}, nil
		})}
	b.bound(config)
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server"+path, nil)
	require.NoError(t, err)
	res, err := transport.RoundTrip(req)
	require.NoError(t, err)
	return io.Copy(io.Discard, res.Body)
}

func TestBodies_AreBoundedWhereTheyAreHeld(t *testing.T) {
	t.Parallel()
	n, err := reader(t, &bodies{}, "/api/v1/pods", http.StatusOK, newEndless("x"))
	require.EqualError(t, err, "the server's answer is longer than 512 MiB")
	require.EqualValues(t, longestAnswer, n)
	n, err = reader(t, &bodies{}, "/api/v1/pods", http.StatusForbidden, newEndless("x"))
	require.EqualError(t, err, "the server's answer is longer than 4 MiB")
	require.EqualValues(t, longestError, n)
	n, err = reader(t, &bodies{}, "/api/v1/pods", http.StatusForbidden, io.LimitReader(newEndless("x"), longestError))
	require.NoError(t, err)
	require.EqualValues(t, longestError, n, "all that may be")

	raw := &bodies{}
	raw.passOn.Store(true)
	_, err = reader(t, raw, "/api/v1/pods", http.StatusNotFound, newEndless("x"))
	require.EqualError(t, err, "the server's answer is longer than 4 MiB")
	for path, b := range map[string]*bodies{"/api/v1/pods": raw, "/api/v1/namespaces/default/pods/web/log": {}} {
		n, err = reader(t, b, path, http.StatusOK, io.LimitReader(newEndless("x"), longestAnswer+2))
		require.NoError(t, err, path)
		require.EqualValues(t, longestAnswer+2, n, "what is passed on has no bound")
	}
}

func TestBodies_EventsOfAWatchAreBoundedAndItsLengthIsNot(t *testing.T) {
	t.Parallel()
	const event = `{"type":"ADDED","object":{"a":["}","\"{",{}]}}` + "\n"
	n, err := reader(t, &bodies{}, "/api/v1/pods?watch=true", http.StatusOK,
		io.LimitReader(newEndless(event), 3*longestEvent))
	require.NoError(t, err)
	require.EqualValues(t, 3*longestEvent, n)
	for _, text := range []string{`{"a":"` + strings.Repeat("}", 99), `{"a":[],`, `{"a":"\"}`} {
		_, err = reader(t, &bodies{}, "/api/v1/pods?watch=1", http.StatusOK,
			io.MultiReader(strings.NewReader(text), newEndless("[],")))
		require.EqualError(t, err, "the server's event is longer than 16 MiB", text)
	}
	_, err = reader(t, &bodies{}, "/api/v1/pods?watch=1", http.StatusOK, newEndless(" \n"))
	require.EqualError(t, err, "the server's event is longer than 16 MiB", "nothing but spaces")
}

func TestBodies_PagesOfAListThatIsKeptAreBoundedTogether(t *testing.T) {
	t.Parallel()
	b := &bodies{pages: map[string]int64{"/api/v1/pods": longestList - 10}}
	_, err := reader(t, b, "/api/v1/pods?limit=500&continue=x", http.StatusOK, strings.NewReader("0123456789"))
	require.NoError(t, err)
	_, err = reader(t, b, "/api/v1/pods?limit=500&continue=y", http.StatusOK, strings.NewReader("0"))
	require.EqualError(t, err, "the server's list is longer than 4096 MiB")
	_, err = reader(t, b, "/api/v1/pods?limit=500", http.StatusOK, strings.NewReader("0123456789"))
	require.NoError(t, err, "another list of the same")
	b.forgetPages.Store(true)
	b.pages["/api/v1/pods"] = longestList
	_, err = reader(t, b, "/api/v1/pods?limit=500&continue=x", http.StatusOK, strings.NewReader("0"))
	require.NoError(t, err)
}

// TestBodies_BombsAreCountedAsTheyAreUnpacked sends a few kilobytes that would be much more.
func TestBodies_BombsAreCountedAsTheyAreUnpacked(t *testing.T) {
	t.Parallel()
	bomb := compressed(t, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"`, longestError>>20)
	f := newFakeServer(t)
	send := func(w http.ResponseWriter, code int, body []byte) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(code)
		_, _ = w.Write(body)
	}
	f.streams = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/pods") {
			return false
		}
		send(w, http.StatusForbidden, bomb)
		return true
	}
	for _, line := range []string{"get pods", "describe pod web", "get --raw /api/v1/pods",
		"exec web -- date", "logs web"} {
		got := f.run(t, "", strings.Fields(line)...)
		require.Equal(t, 1, got.code, line)
		require.Less(t, len(got.errOut), 4096, line)
	}
	manifest := compressed(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n  a: ", longestManifest>>20)
	manifests := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		send(w, http.StatusOK, manifest)
	}))
	t.Cleanup(manifests.Close)
	for _, verb := range []string{"apply", "create"} {
		got := f.run(t, "", verb, "-f", manifests.URL+"/bomb.yaml")
		require.Equal(t, 1, got.code)
		require.Contains(t, got.errOut, "the server's answer is longer than 64 MiB")
	}
}

func TestApply_TakesURLsAmongFilesInTheirOrder(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	manifests := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/map" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, "{apiVersion: v1, kind: ConfigMap, metadata: {name: second}}")
	}))
	t.Cleanup(manifests.Close)
	file := filepath.Join(t.TempDir(), "first.yaml")
	require.NoError(t, os.WriteFile(file, []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: first}}"), 0o600))
	got := f.run(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: third}}", "create", "--validate=false", "-f",
		file, "-f", manifests.URL+"/map", "-f", "-")
	require.Equal(t, outcome{0, "configmap/first created\nconfigmap/second created\nconfigmap/third created\n", ""},
		got)
	got = f.run(t, "", "create", "-f", manifests.URL+"/nope")
	require.Equal(t, outcome{1, "", "error: unable to read URL \"" + manifests.URL +
		"/nope\", server reported 404 Not Found, status code=404\n"}, got)
}

func TestLogs_LinesWithoutEndComeInPieces(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	to := &lineWriter{to: &out, prefix: "[pod/web/c] "}
	require.NoError(t,
		copyLines(to, io.MultiReader(io.LimitReader(newEndless("x"), 3*longestLine), strings.NewReader("\nshort\nlast"))))
	lines := strings.Split(out.String(), "\n")
	require.Len(t, lines, 3)
	require.Equal(t, "[pod/web/c] "+strings.Repeat("x", 3*longestLine), lines[0], "one prefix for each line")
	require.Equal(t, []string{"[pod/web/c] short", "[pod/web/c] last"}, lines[1:])
}
