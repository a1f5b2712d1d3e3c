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

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
)

// compressed returns head and count megabytes of "x" as gzip.
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

// TestBodies_LimitTheDecompressedSize sends a few kilobytes that decompress to megabytes.
func TestBodies_LimitTheDecompressedSize(t *testing.T) {
	t.Parallel()
	bomb := compressed(t, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"`, 4)
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
		require.Equal(t, 1, got.Code, line)
		require.Less(t, len(got.ErrOut), 4096, line)
	}
	manifest := compressed(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n  a: ", 64)
	manifests := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		send(w, http.StatusOK, manifest)
	}))
	t.Cleanup(manifests.Close)
	for _, verb := range []string{"apply", "create"} {
		got := f.run(t, "", verb, "-f", manifests.URL+"/bomb.yaml")
		require.Equal(t, 1, got.Code)
		require.Contains(t, got.ErrOut, "the server's answer is longer than 64 MiB")
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
	require.Equal(t, clitest.Outcome{Out: "configmap/first created\nconfigmap/second created\nconfigmap/third created\n"},
		got)
	got = f.run(t, "", "create", "-f", manifests.URL+"/nope")
	require.Equal(t, clitest.Outcome{Code: 1, ErrOut: "error: unable to read URL \"" + manifests.URL +
		"/nope\", server reported 404 Not Found, status code=404\n"}, got)
}

func TestLogs_WritesLongLinesInPieces(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	writer := &lineWriter{out: &out, prefix: "[pod/web/c] "}
	require.NoError(t,
		copyLines(writer, strings.NewReader(strings.Repeat("x", 3*longestLine)+"\nshort\nlast")))
	lines := strings.Split(out.String(), "\n")
	require.Len(t, lines, 3)
	require.Equal(t, "[pod/web/c] "+strings.Repeat("x", 3*longestLine), lines[0], "one prefix for each line")
	require.Equal(t, []string{"[pod/web/c] short", "[pod/web/c] last"}, lines[1:])
}
