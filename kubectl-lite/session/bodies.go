package session

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// Answers that this program holds in memory are bounded after decompression: no server, and nothing that poses as
// one, may take all the memory of the machine. Streams that are passed on have no bound.
const (
	// longestAnswer is the most that one answer may have. A page of 500 objects of the largest size that etcd
	// takes, 1 MiB, is as long; so are 100,000 pods of 5 KiB that are read at once.
	longestAnswer = 512 << 20
	// longestList is the most that the pages of one list may have together where all of them are kept.
	longestList = 4 << 30
	// longestError is the most that an answer with an error may have. A Status speaks of one request, which
	// has 3 MiB at most.
	longestError = 4 << 20
	// longestEvent is the most that one event of a watch may have, which holds one object. client-go takes no
	// longer ones, but would read them to their end first.
	longestEvent = 16 << 20
	// longestManifest is the most that a URL of -f may have; the largest collections of manifests have a tenth.
	longestManifest = 64 << 20
)

// bodies bounds the answers to a session's requests.
type bodies struct {
	passOn      atomic.Bool // answers are passed on as they come: nothing is held
	forgetPages atomic.Bool // pages of a list are printed one by one

	mu    sync.Mutex
	pages map[string]int64 // by path: how much the pages of the list that is being read have had
}

// bound limits the answers to all clients of a configuration.
func (b *bodies) bound(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return transportFunc(func(r *http.Request) (*http.Response, error) {
			res, err := next.RoundTrip(r)
			// that is a connection, which carries streams
			if err == nil && res.StatusCode != http.StatusSwitchingProtocols {
				b.limit(r, res)
			}
			return res, err
		})
	})
}

// PassOnAll ends the bounds of answers: they are passed on as they come.
func (b *bodies) PassOnAll() { b.passOn.Store(true) }

// ForgetAllPages ends the bound of a list's pages together: they are printed one by one.
func (b *bodies) ForgetAllPages() { b.forgetPages.Store(true) }

func (b *bodies) limit(r *http.Request, res *http.Response) {
	query := r.URL.Query()
	watching := query.Get("watch") == "true" || query.Get("watch") == "1"
	switch {
	case res.StatusCode >= http.StatusBadRequest:
		res.Body = &limitedBody{ReadCloser: res.Body, most: longestError, left: longestError}
	case b.passOn.Load() || strings.HasSuffix(r.URL.Path, "/log"): // logs are copied line by line
	case watching:
		res.Body = &watchBody{ReadCloser: res.Body}
	default:
		res.Body = &limitedBody{ReadCloser: res.Body, most: longestAnswer, left: longestAnswer, count: b.counting(r)}
	}
}

// counting adds up the pages of a list. Other answers are not kept together.
func (b *bodies) counting(r *http.Request) func(int) error {
	query := r.URL.Query()
	if query.Get("limit") == "" || b.forgetPages.Load() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pages == nil {
		b.pages = map[string]int64{}
	}
	if query.Get("continue") == "" {
		b.pages[r.URL.Path] = 0
	}
	return func(n int) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.pages[r.URL.Path] += int64(n); b.pages[r.URL.Path] > longestList {
			return tooLong("list", longestList)
		}
		return nil
	}
}

func tooLong(what string, most int64) error {
	return fmt.Errorf("the server's %s is longer than %d MiB", what, most>>20)
}

// limitedBody is a body that ends in an error where it is longer than it may be.
type limitedBody struct {
	io.ReadCloser
	most, left int64
	count      func(int) error // of each piece; may be nil
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 { // one more shows that there is more
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if int64(n) > b.left {
		return int(b.left), tooLong("answer", b.most)
	}
	b.left -= int64(n)
	if b.count != nil {
		if err := b.count(n); err != nil {
			return n, err
		}
	}
	return n, err
}

// watchBody is a stream of JSON values that ends in an error where one of them is longer than it may be. It
// follows strings and brackets, and leaves all else of JSON to the reader.
type watchBody struct {
	io.ReadCloser
	size, depth      int
	quoted, escaping bool
}

func (b *watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for _, c := range p[:n] {
		b.size++
		switch {
		case b.escaping:
			b.escaping = false
		case b.quoted:
			b.quoted, b.escaping = c != '"', c == '\\'
		case c == '"':
			b.quoted = true
		case c == '{' || c == '[':
			b.depth++
		case c == '}' || c == ']':
			if b.depth--; b.depth <= 0 {
				b.depth, b.size = 0, 0
			}
		}
		if b.size > longestEvent {
			return 0, tooLong("event", longestEvent)
		}
	}
	return n, err
}

// transportFunc is a function as a round tripper.
type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
