package session

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// endless repeats a text without end.
type endless struct {
	text   string
	offset int
}

func newEndless(text string) *endless {
	return &endless{text: strings.Repeat(text, 64<<10/len(text)+1)} // because copying few bytes at a time is slow
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.text[e.offset:])
	e.offset = (e.offset + n) % len(e.text)
	return n, nil
}

// reader reads one answer through a client with the limits of a session.
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

func TestBodies_LimitAnswersThatAreHeldInMemory(t *testing.T) {
	t.Parallel()
	n, err := reader(t, &bodies{}, "/api/v1/pods", http.StatusOK, newEndless("x"))
	require.EqualError(t, err, "the server's answer is longer than 512 MiB")
	require.EqualValues(t, longestAnswer, n)
	n, err = reader(t, &bodies{}, "/api/v1/pods", http.StatusForbidden, newEndless("x"))
	require.EqualError(t, err, "the server's answer is longer than 4 MiB")
	require.EqualValues(t, longestError, n)
	n, err = reader(t, &bodies{}, "/api/v1/pods", http.StatusForbidden, io.LimitReader(newEndless("x"), longestError))
	require.NoError(t, err)
	require.EqualValues(t, longestError, n, "the limit itself is allowed")

	raw := &bodies{}
	raw.passOn.Store(true)
	_, err = reader(t, raw, "/api/v1/pods", http.StatusNotFound, newEndless("x"))
	require.EqualError(t, err, "the server's answer is longer than 4 MiB")
	for path, b := range map[string]*bodies{"/api/v1/pods": raw, "/api/v1/namespaces/default/pods/web/log": {}} {
		n, err = reader(t, b, path, http.StatusOK, io.LimitReader(newEndless("x"), longestAnswer+2))
		require.NoError(t, err, path)
		require.EqualValues(t, longestAnswer+2, n, "passing on has no limit")
	}
}

func TestBodies_LimitEventsOfAWatchButNotItsLength(t *testing.T) {
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
	require.EqualError(t, err, "the server's event is longer than 16 MiB", "only spaces")
}

func TestBodies_LimitTheSumOfAListsPages(t *testing.T) {
	t.Parallel()
	b := &bodies{pages: map[string]int64{"/api/v1/pods": longestList - 10}}
	_, err := reader(t, b, "/api/v1/pods?limit=500&continue=x", http.StatusOK, strings.NewReader("0123456789"))
	require.NoError(t, err)
	_, err = reader(t, b, "/api/v1/pods?limit=500&continue=y", http.StatusOK, strings.NewReader("0"))
	require.EqualError(t, err, "the server's list is longer than 4096 MiB")
	_, err = reader(t, b, "/api/v1/pods?limit=500", http.StatusOK, strings.NewReader("0123456789"))
	require.NoError(t, err, "a new list of the same path")
	b.forgetPages.Store(true)
	b.pages["/api/v1/pods"] = longestList
	_, err = reader(t, b, "/api/v1/pods?limit=500&continue=x", http.StatusOK, strings.NewReader("0"))
	require.NoError(t, err)
}
