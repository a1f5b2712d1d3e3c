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

// The size of answers that this program holds in memory is limited after decompression: a server must not be able to
// use all the memory of the user's machine. Streams that are only passed on have no limit.
const (
	// longestAnswer limits one answer. A page of 500 objects of the largest size that etcd takes, 1 MiB, is as long;
	// so are 100,000 pods of 5 KiB in one list.
	longestAnswer = 512 << 20
	// longestList limits the pages of one list together, if all of them are kept in memory.
	longestList = 4 << 30
	// longestError limits an answer with an error. A Status is about one request, and requests have 3 MiB at most.
	longestError = 4 << 20
	// longestEvent limits one event of a watch, which holds one object. client-go rejects longer ones too, but only
	// after it has read them to their end.
	longestEvent = 16 << 20
	// longestManifest limits a URL of -f. The largest collections of manifests are a tenth as long.
	longestManifest = 64 << 20
)

// bodies limits the size of the answers to a session's requests.
type bodies struct {
	passOn      atomic.Bool // answers are passed on as they come, and not held in memory
	forgetPages atomic.Bool // pages of a list are printed one by one, and not held together

	mu    sync.Mutex
	pages map[string]int64 // by path: the bytes of all pages so far of the list that is being read
}

// bound limits the answers to all clients that are made from a configuration.
func (b *bodies) bound(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return transportFunc(func(r *http.Request) (*http.Response, error) {
			res, err := next.RoundTrip(r)
			// a switch of protocols makes a connection that carries streams
			if err == nil && res.StatusCode != http.StatusSwitchingProtocols {
				b.limit(r, res)
			}
			return res, err
		})
	})
}

// PassOnAnswers removes the limit of successful answers: the command passes them on as they come.
func (s *Session) PassOnAnswers() { s.bodies.passOn.Store(true) }

// ForgetPages removes the common limit of a list's pages: the command prints them one by one.
func (s *Session) ForgetPages() { s.bodies.forgetPages.Store(true) }

// limit replaces the body of an answer by one with the limit for its kind.
func (b *bodies) limit(r *http.Request, res *http.Response) {
	query := r.URL.Query()
	watching := query.Get("watch") == "true" || query.Get("watch") == "1"
	switch {
	case res.StatusCode >= http.StatusBadRequest:
		res.Body = &limitedBody{ReadCloser: res.Body, limit: longestError, left: longestError}
	case b.passOn.Load() || strings.HasSuffix(r.URL.Path, "/log"): // logs are copied line by line
	case watching:
		res.Body = &watchBody{ReadCloser: res.Body}
	default:
		res.Body = &limitedBody{ReadCloser: res.Body, limit: longestAnswer, left: longestAnswer, count: b.counting(r)}
	}
}

// counting returns a function that adds up the bytes of a list's pages, or nil if r is not for a page.
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

func tooLong(thing string, limit int64) error {
	return fmt.Errorf("the server's %s is longer than %d MiB", thing, limit>>20)
}

// limitedBody is a body that ends with an error if it is longer than its limit.
type limitedBody struct {
	io.ReadCloser
	limit, left int64
	count       func(int) error // called with the length of each piece; may be nil
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 { // one byte more shows that the body is too long
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if int64(n) > b.left {
		return int(b.left), tooLong("answer", b.limit)
	}
	b.left -= int64(n)
	if b.count != nil {
		if err := b.count(n); err != nil {
			return n, err
		}
	}
	return n, err
}

// watchBody is a stream of JSON values that ends with an error if one of them is longer than longestEvent. To find the
// end of a value it follows strings and brackets; the reader checks the rest of the syntax.
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

// transportFunc makes a function a round tripper.
type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
