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

// Where another server converts a kind's objects (api.Resource.WebhookConverted), a document is converted once for the
// readers and watchers that come at about the same time. The key of a conversion is the document's content, so that
// there is also one of a document that is not stored, such as the outcome of a dry run.

const (
	// maxConverted is how many bytes of converted documents are kept, for all kinds of the process together.
	maxConverted = 64 << 20
	// convertedFor is how long they are: the other server may have a new program that converts in another way.
	convertedFor = 10 * time.Second
	// The other server is asked about so many documents at once, or bytes of them if these are fewer.
	batchDocuments = 500
	batchBytes     = 2 << 20
)

var converted = newConversions(maxConverted, time.Now)

// conversionKey identifies a document's content and the version into which it is converted.
type conversionKey [sha256.Size]byte

func conversionKeyOf(res *api.Resource, o *storage.Object) conversionKey {
	h := sha256.New()
	var schema [8]byte
	binary.BigEndian.PutUint64(schema[:], res.Schema) // no two registrations of a process have the same
	h.Write(schema[:])
	h.Write(o.JSON)
	return conversionKey(h.Sum(nil))
}

// conversions keeps converted documents for convertedFor, the newest of them if they are too many. It is safe for
// concurrent use.
type conversions struct {
	most int
	now  func() time.Time

	mu    sync.Mutex
	known map[conversionKey]*conversion
	kept  list.List // of *conversion, the newest first
	size  int       // of their documents
	sweep *time.Timer
}

// conversion is one document's. It is under way until its call is done.
type conversion struct {
	key  conversionKey
	call *conversionCall
	doc  *storage.Object // once the call is done, nil if it failed
	// While it is kept:
	at   time.Time
	kept *list.Element
}

// conversionCall converts documents in one step.
type conversionCall struct {
	documents int
	done      chan struct{} // closed when the call is done
	// Once it is done:
	err   error
	ended bool // because the request that made it ended
}

func newConversions(most int, now func() time.Time) *conversions {
	return &conversions{most: most, now: now, known: map[conversionKey]*conversion{}}
}

// documents returns stored documents in the version of the registration.
func (c *conversions) documents(ctx context.Context, res *api.Resource, items []*storage.Object) (
	[]*storage.Object, error) {
	docs := make([]*storage.Object, len(items))
	var at []int
	size := 0
	flush := func() error {
		err := c.batch(ctx, res, items, at, docs)
		at, size = at[:0], 0
		return err
	}
	for i, o := range items {
		if isCurrent(res, o) {
			docs[i] = o
			continue
		}
		if len(at) == batchDocuments || len(at) > 0 && size+len(o.JSON) > batchBytes {
			if err := flush(); err != nil {
				return nil, err
			}
		}
		at, size = append(at, i), size+len(o.JSON)
	}
	if len(at) == 0 {
		return docs, nil
	}
	return docs, flush()
}

// batch converts the items at some places into docs. Those that another request is converting are waited for.
func (c *conversions) batch(ctx context.Context, res *api.Resource, items []*storage.Object, at []int,
	docs []*storage.Object) error {
	keys := make([]conversionKey, len(at))
	for i, at := range at {
		keys[i] = conversionKeyOf(res, items[at])
	}
	for {
		all, mine := c.claim(keys)
		if err := c.convert(ctx, res, items, at, all, mine); err != nil {
			return err
		}
		failed := map[*conversionCall]int{} // how many of its documents are wanted here
		for i, e := range all {
			select {
			case <-e.call.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			if docs[at[i]] = e.doc; e.doc == nil {
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

// shared is the error of another request's call that is this one's as well: it did not fail because its request ended,
// nor perhaps because of documents that are not wanted here.
func shared(failed map[*conversionCall]int) error {
	for call, wanted := range failed {
		if !call.ended && wanted == call.documents {
			return call.err
		}
	}
	return nil
}

// claim returns the conversions of some documents, and which of them the caller has to make.
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

// convert makes the conversions that the caller has claimed. at has the place of each of all among the items.
func (c *conversions) convert(ctx context.Context, res *api.Resource, items []*storage.Object, at []int,
	all []*conversion, mine []int) error {
	if len(mine) == 0 {
		return nil
	}
	chosen := make([]*storage.Object, len(mine))
	for i, m := range mine {
		chosen[i] = items[at[m]]
	}
	var docs []*storage.Object
	call := all[mine[0]].call
	call.ended = true
	defer func() { // even after a panic: others wait
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

// keep keeps a conversion that has been made of a document, unless there is no need to. c.mu is held.
func (c *conversions) keep(e *conversion, of *storage.Object) {
	if e.doc == nil || e.doc == of || len(e.doc.JSON) > c.most {
		delete(c.known, e.key)
		return
	}
	e.at, e.kept = c.now(), c.kept.PushFront(e)
	for c.size += len(e.doc.JSON); c.size > c.most; {
		c.forget(c.kept.Back().Value.(*conversion))
	}
	if c.sweep == nil {
		c.sweep = time.AfterFunc(convertedFor, c.sweepUp)
	}
}

// sweepUp drops what has been kept for long enough, also if nobody asks for anything any more.
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

// expire drops what has been kept for long enough. c.mu is held.
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

// forget drops a conversion that is kept. c.mu is held.
func (c *conversions) forget(e *conversion) {
	c.kept.Remove(e.kept)
	c.size -= len(e.doc.JSON)
	delete(c.known, e.key)
}

// convertDocuments converts documents in one step.
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
