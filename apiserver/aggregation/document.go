package aggregation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/internal/backoff"
)

const (
	// goodFor is how long a document is used before it is fetched again.
	goodFor = time.Minute
	// After a failed fetch, the next one waits for notBefore. The wait doubles with each failure, up to goodFor.
	notBefore = 500 * time.Millisecond
	// waitFor limits how long a request for a merged document waits for the first fetch from the other servers.
	waitFor = 5 * time.Second
	// specTimeout limits a fetch of OpenAPI, which some servers generate on the first request.
	specTimeout = time.Minute
	// fetchesAtOnce limits the number of documents fetched in parallel.
	fetchesAtOnce = 16
)

// document caches a document that another server publishes. It is fetched on demand. The first request waits for
// the fetch; later ones get the last known document while a newer one is fetched in the background.
type document[T any] struct {
	// fetch returns the document and its ETag, or errSame if the document with the given ETag is current.
	fetch func(ctx context.Context, etag string) (T, string, error)
	// limit is the timeout of a fetch.
	limit time.Duration

	mu    sync.Mutex
	value T
	valid bool
	etag  string
	err   error // of the last fetch
	// until is when the document becomes due for the next fetch. failures counts the failed fetches in a row.
	until    time.Time
	failures int
	// underWay is closed when the fetch in progress ends; it is nil if none is.
	underWay chan struct{}
	// tried is set once a fetch has ended since the server became available. Requests do not wait any more then.
	tried bool
}

// errSame is returned when a server's document has not changed.
var errSame = errors.New("not modified")

// known is the last known document. If err is set, the document may be out of date or missing.
type known[T any] struct {
	value T
	err   error
}

var (
	errUnfetched = errors.New("not fetched yet")
	errAway      = errors.New("the server is not available")
)

// begin starts a fetch if one is due. It returns a channel to wait on, or nil if the caller need not wait.
func (d *document[T]) begin(a *Aggregation) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.underWay == nil && !a.Clock.Now().Before(d.until) {
		done := make(chan struct{})
		if a.start(func(ctx context.Context) { d.renew(ctx, a, done) }) {
			d.underWay = done
		}
	}
	if d.tried {
		return nil
	}
	return d.underWay
}

// last returns the last known document.
func (d *document[T]) last() known[T] {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.valid && d.err == nil {
		return known[T]{d.value, errUnfetched}
	}
	return known[T]{d.value, d.err}
}

// askAll starts the fetches that are due from all available servers, waits for the first ones up to waitFor and
// returns the last known documents. It returns an empty map for a request that this server has already proxied.
func askAll[T any](ctx context.Context, a *Aggregation, h http.Header, current *set,
	documentOf func(*link) *document[T]) map[schema.GroupVersion]known[T] {
	found := map[schema.GroupVersion]known[T]{}
	if a.returned(h) {
		return found
	}
	ctx, cancel := context.WithTimeout(ctx, waitFor)
	defer cancel()
	var waits []<-chan struct{}
	for _, s := range current.services {
		if !s.Available {
			continue
		}
		if wait := documentOf(s.link).begin(a); wait != nil {
			waits = append(waits, wait)
		}
	}
	for _, wait := range waits {
		select {
		case <-wait:
		case <-ctx.Done():
		}
	}
	for gv, s := range current.services {
		k := documentOf(s.link).last()
		if !s.Available {
			k.err = errAway
		}
		found[gv] = k
	}
	return found
}

// renew fetches the document, stores the result and closes done.
func (d *document[T]) renew(ctx context.Context, a *Aggregation, done chan struct{}) {
	d.mu.Lock()
	etag := d.etag
	d.mu.Unlock()
	value, etag, err := d.fetchBounded(ctx, a, etag)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		d.value, d.etag, d.valid = value, etag, true
	case errors.Is(err, errSame) && d.valid:
		err = nil
	}
	d.err, d.tried, d.underWay = err, true, nil
	if err == nil {
		d.until, d.failures = a.Clock.Now().Add(goodFor), 0
	} else {
		d.failures++
		d.until = a.Clock.Now().Add(backoff.After(d.failures, notBefore, goodFor))
	}
	close(done)
}

// fetchBounded fetches the document under the limits of time and parallelism. It turns a panic into an error, since
// the parsing libraries may not be robust against a hostile document.
func (d *document[T]) fetchBounded(ctx context.Context, a *Aggregation, etag string) (value T, tag string, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	select {
	case a.fetches <- struct{}{}:
		defer func() { <-a.fetches }()
	case <-ctx.Done():
		return value, "", ctx.Err()
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("reading the document: %v", p)
		}
	}()
	return d.fetch(ctx, etag)
}

// expire makes the document due at once and the next request wait for it.
func (d *document[T]) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until, d.failures, d.tried = time.Time{}, 0, false
}

// start runs do in a goroutine that ends with the aggregator. It returns false if the aggregator has ended.
func (a *Aggregation) start(do func(context.Context)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.background.Err() != nil {
		return false
	}
	a.running.Go(func() { do(a.background) })
	return true
}

// reply is a response to a request of the aggregator's own.
type reply struct {
	code   int
	header http.Header
	body   []byte
}

// ask fetches path from a server in the media type accept. It fails if the body exceeds limit bytes, and returns
// errSame if the server's document still has the given etag, if any.
func (a *Aggregation) ask(ctx context.Context, l *link, path string, limit int64, accept, etag string) (*reply,
	error) {
	header := http.Header{"Accept": {accept}}
	if etag != "" {
		header["If-None-Match"] = []string{etag}
	}
	host, err := l.address(ctx)
	if err != nil {
		return nil, err
	}
	res, err := a.get(ctx, l, &url.URL{Scheme: "https", Host: host, Path: path}, header)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusNotModified && etag != "" {
		return nil, errSame
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return &reply{res.StatusCode, res.Header, body}, nil
}

// failure returns the error for a reply with an unexpected status.
func (r *reply) failure(path string) error {
	const maxQuoted = 200
	return fmt.Errorf("%s: status %d: %.*s", path, r.code, maxQuoted, r.body)
}
