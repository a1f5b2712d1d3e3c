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
	// goodFor is how long a document is used before it is asked for again.
	goodFor = time.Minute
	// A server that does not tell what it serves is asked again after notBefore, then after twice that, up to goodFor.
	notBefore = 500 * time.Millisecond
	// waitFor bounds what a request for a merged document waits for one server, the first time that it is asked.
	waitFor = 5 * time.Second
	// specTimeout bounds fetching OpenAPI, which some servers make when they are first asked for it.
	specTimeout = time.Minute
	// fetchesAtOnce is how many documents are being fetched at the same time.
	fetchesAtOnce = 16
)

// document is something that another server says about itself, as it was fetched last. It is fetched when somebody asks
// for it: the first who does waits, later ones get the last known one while a newer one is under way.
type document[T any] struct {
	// fetch returns the document and its ETag, or errSame if it still has the given one.
	fetch func(ctx context.Context, etag string) (T, string, error)
	// limit bounds a fetch.
	limit time.Duration

	mu    sync.Mutex
	value T
	known bool
	etag  string
	err   error // of the last fetch
	// until is when it is asked for again, and failures how often in a row that has failed.
	until    time.Time
	failures int
	// underWay is closed when the fetch under way is done; it is nil if there is none.
	underWay chan struct{}
	// asked says that a fetch has been done since the server became available: nobody waits any more.
	asked bool
}

// errSame is the answer of a server whose document has not changed.
var errSame = errors.New("not modified")

// known is a document, as far as it is known. err is why it may be out of date, or why there is none.
type known[T any] struct {
	value T
	err   error
}

var (
	errUnfetched = errors.New("not fetched yet")
	errAway      = errors.New("the server is not available")
)

// begin starts a fetch if one is due. It returns what to wait for; nil if there is no need to.
func (d *document[T]) begin(a *Aggregation) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.underWay == nil && !a.Clock.Now().Before(d.until) {
		done := make(chan struct{})
		if a.start(func(ctx context.Context) { d.renew(ctx, a, done) }) {
			d.underWay = done
		}
	}
	if d.asked {
		return nil
	}
	return d.underWay
}

// last returns the last known document.
func (d *document[T]) last() known[T] {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.known && d.err == nil {
		return known[T]{d.value, errUnfetched}
	}
	return known[T]{d.value, d.err}
}

// askAll asks all servers for a document at the same time, but for those that are not available. A request that this
// server itself has sent on asks nobody.
func askAll[T any](ctx context.Context, a *Aggregation, h http.Header, current *set,
	of func(*link) *document[T]) map[schema.GroupVersion]known[T] {
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
		if wait := of(s.link).begin(a); wait != nil {
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
		k := of(s.link).last()
		if !s.Available {
			k.err = errAway
		}
		found[gv] = k
	}
	return found
}

// renew fetches the document.
func (d *document[T]) renew(ctx context.Context, a *Aggregation, done chan struct{}) {
	d.mu.Lock()
	etag := d.etag
	d.mu.Unlock()
	value, etag, err := d.fetchBounded(ctx, a, etag)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		d.value, d.etag, d.known = value, etag, true
	case errors.Is(err, errSame) && d.known:
		err = nil
	}
	d.err, d.asked, d.underWay = err, true, nil
	if err == nil {
		d.until, d.failures = a.Clock.Now().Add(goodFor), 0
	} else {
		d.failures++
		d.until = a.Clock.Now().Add(backoff.After(d.failures, notBefore, goodFor))
	}
	close(done)
}

// fetchBounded fetches it as one of few at a time. What others' code makes of a hostile document is an error.
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

// expire has the next one who asks wait for a new document.
func (d *document[T]) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until, d.failures, d.asked = time.Time{}, 0, false
}

// start runs something that ends with the aggregator; false if that has ended.
func (a *Aggregation) start(do func(context.Context)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.background.Err() != nil {
		return false
	}
	a.running.Go(func() { do(a.background) })
	return true
}

// reply is a response to the aggregator's own question.
type reply struct {
	code   int
	header http.Header
	body   []byte
}

// ask gets a path of a server in a media type. The body may have limit bytes. A server whose document still has the
// etag, if one is given, answers errSame.
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

// failure is the error of a reply that is none of those that are expected.
func (r *reply) failure(path string) error {
	const most = 200
	return fmt.Errorf("%s: status %d: %.*s", path, r.code, most, r.body)
}
