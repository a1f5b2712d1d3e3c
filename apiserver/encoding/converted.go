package encoding

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// If another server converts a kind's objects (api.Resource.WebhookConverted), concurrent readers and watchers share
// one conversion of a document, which is then cached. The key is a hash of the document's content, so documents that
// are not stored, such as the outcome of a dry run, can be cached too.

const (
	// maxConverted limits the converted documents that are cached in the process, in bytes.
	maxConverted = 64 << 20
	// convertedFor is how long a conversion is cached. It is short because the other server's program may be
	// updated.
	convertedFor = 10 * time.Second
	// Each request to the other server has at most batchDocuments documents and about batchBytes bytes.
	batchDocuments = 500
	batchBytes     = 2 << 20
)

var converted = newConversions(maxConverted, time.Now)

// conversionKey identifies a document's content and the version to convert it to.
type conversionKey [sha256.Size]byte

func conversionKeyOf(res *api.Resource, o *storage.Object) conversionKey {
	h := sha256.New()
	var schema [8]byte
	binary.BigEndian.PutUint64(schema[:], res.Schema) // unique among the registrations of a process
	h.Write(schema[:])
	h.Write(o.JSON)
	return conversionKey(h.Sum(nil))
}

// conversions caches converted documents for convertedFor, preferring the newest if there are too many. It is safe
// for concurrent use.
type conversions struct {
	most int
	now  func() time.Time

	mu    sync.Mutex
	known map[conversionKey]*conversion
	kept  list.List // of *conversion, the newest first
	size  int       // total size of the cached documents
	sweep *time.Timer
}

// conversion converts one document. It is in progress until its call is done.
type conversion struct {
	key  conversionKey
	call *conversionCall
	doc  *storage.Object // valid once the call is done; nil if it failed
	// Set while it is cached:
	at      time.Time
	element *list.Element
}

// conversionCall converts several documents in one request.
type conversionCall struct {
	documents int
	done      chan struct{} // closed when the call is done
	// Valid once it is done:
	err   error
	ended bool // because the context of the request that made it ended
}

func newConversions(most int, now func() time.Time) *conversions {
	return &conversions{most: most, now: now, known: map[conversionKey]*conversion{}}
}

// documents returns the stored documents in the version of the registration.
func (c *conversions) documents(ctx context.Context, res *api.Resource, items []*storage.Object) (
	[]*storage.Object, error) {
	docs := make([]*storage.Object, len(items))
	var indexes []int
	size := 0
	flush := func() error {
		err := c.batch(ctx, res, items, indexes, docs)
		indexes, size = indexes[:0], 0
		return err
	}
	for i, o := range items {
		if isCurrent(res, o) {
			docs[i] = o
			continue
		}
		if len(indexes) == batchDocuments || len(indexes) > 0 && size+len(o.JSON) > batchBytes {
			if err := flush(); err != nil {
				return nil, err
			}
		}
		indexes, size = append(indexes, i), size+len(o.JSON)
	}
	if len(indexes) == 0 {
		return docs, nil
	}
	return docs, flush()
}

// batch converts the items at the given indexes and stores the results in docs. It waits for documents that another
// request is already converting.
func (c *conversions) batch(ctx context.Context, res *api.Resource, items []*storage.Object, indexes []int,
	docs []*storage.Object) error {
	keys := make([]conversionKey, len(indexes))
	for i, index := range indexes {
		keys[i] = conversionKeyOf(res, items[index])
	}
	for {
		all, mine := c.claim(keys)
		if err := c.convert(ctx, res, items, indexes, all, mine); err != nil {
			return err
		}
		failed := map[*conversionCall]int{} // number of its documents needed here
		for i, e := range all {
			select {
			case <-e.call.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			if docs[indexes[i]] = e.doc; e.doc == nil {
				failed[e.call]++
			}
		}
		if len(failed) == 0 {
			return nil
		}
		if err := shared(failed); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// shared returns the error of another request's call if it applies to this request too. It does not apply if the
// call ended with its request, or if documents that are not needed here may have caused it.
func shared(failed map[*conversionCall]int) error {
	for call, needed := range failed {
		if !call.ended && needed == call.documents {
			return call.err
		}
	}
	return nil
}

// claim returns the conversions of the documents, and the indexes of the ones that the caller must make.
func (c *conversions) claim(keys []conversionKey) (all []*conversion, mine []int) {
	all = make([]*conversion, len(keys))
	call := &conversionCall{done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire()
	for i, key := range keys {
		e := c.known[key]
		if e == nil {
			e = &conversion{key: key, call: call}
			call.documents++
			c.known[key], mine = e, append(mine, i)
		}
		all[i] = e
	}
	return all, mine
}

// convert makes the conversions that the caller has claimed. indexes maps each conversion to its item.
func (c *conversions) convert(ctx context.Context, res *api.Resource, items []*storage.Object, indexes []int,
	all []*conversion, mine []int) error {
	if len(mine) == 0 {
		return nil
	}
	chosen := make([]*storage.Object, len(mine))
	for i, m := range mine {
		chosen[i] = items[indexes[m]]
	}
	var docs []*storage.Object
	call := all[mine[0]].call
	call.ended = true
	defer func() { // even after a panic, because others wait
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, m := range mine {
			e := all[m]
			if docs != nil {
				e.doc = docs[i]
			}
			c.keep(e, chosen[i])
		}
		close(call.done)
	}()
	docs, call.err = convertDocuments(ctx, res, chosen)
	call.ended = ctx.Err() != nil
	return call.err
}

// keep caches a completed conversion of document, if worthwhile. c.mu must be held.
func (c *conversions) keep(e *conversion, document *storage.Object) {
	if e.doc == nil || e.doc == document || len(e.doc.JSON) > c.most {
		delete(c.known, e.key)
		return
	}
	e.at, e.element = c.now(), c.kept.PushFront(e)
	for c.size += len(e.doc.JSON); c.size > c.most; {
		c.forget(c.kept.Back().Value.(*conversion))
	}
	if c.sweep == nil {
		c.sweep = time.AfterFunc(convertedFor, c.sweepUp)
	}
}

// sweepUp removes expired conversions, so that memory is freed even without further requests.
func (c *conversions) sweepUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire()
	if c.kept.Len() == 0 {
		c.sweep = nil
		return
	}
	c.sweep.Reset(convertedFor)
}

// expire removes expired conversions. c.mu must be held.
func (c *conversions) expire() {
	now := c.now()
	for c.kept.Len() > 0 {
		oldest := c.kept.Back().Value.(*conversion)
		if now.Sub(oldest.at) < convertedFor {
			return
		}
		c.forget(oldest)
	}
}

// forget removes a cached conversion. c.mu must be held.
func (c *conversions) forget(e *conversion) {
	c.kept.Remove(e.element)
	c.size -= len(e.doc.JSON)
	delete(c.known, e.key)
}

// convertDocuments converts documents in one request.
func convertDocuments(ctx context.Context, res *api.Resource, items []*storage.Object) ([]*storage.Object, error) {
	objs := make([]api.Object, len(items))
	for i, o := range items {
		err := wanted(ctx, i)
		if err != nil {
			return nil, err
		}
		if objs[i], err = decode(res, o); err != nil {
			return nil, err
		}
	}
	objs, err := res.Convert(ctx, objs)
	if err != nil {
		return nil, err
	}
	docs := make([]*storage.Object, len(items))
	for i, obj := range objs {
		if docs[i], err = document(res, items[i], obj); err != nil {
			return nil, err
		}
	}
	return docs, nil
}
