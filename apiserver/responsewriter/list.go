package responsewriter

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/conn"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// listChunk is about how many bytes of a list are held back before they are sent. A long list leaves in few system
// calls: TLS by itself makes one of each of its records of 16 KiB. An error in the first chunk is answered with a
// Status, and a later one cuts the response off.
const listChunk = 64 << 10

// pointerSize is the memory of a reference to an object.
const pointerSize = 8

// maxWhole is the divisor of the budget that limits the length of a list that is encoded in one piece.
const maxWhole = 8

// List sends a list of objects chunk by chunk: only a chunk of it is encoded at a time. The calls come in this order:
// BeginSelection, ReserveItems and EndSelection if the objects are selected from the store; then BeginEncoding,
// BeginBody, Append for each item, and Flush. Close follows in any case.
type List struct {
	w         *Writer
	to        http.ResponseWriter // w, or a ResponseWriter around it
	mediaType string
	compress  bool

	slot  slot
	buf   []byte
	chunk int // how many bytes are held back
	// size is the length of the body, -1 if it is not known before all of it is encoded.
	size  int
	timer audit.Timer // of encoding

	// body is to or a compressor in front of it. It is nil until the head of the response is sent, and finish ends it.
	body   io.Writer
	finish func()
	corked *conn.Conn
	// failed is set once the client has left or was cut off. The rest of the list is not encoded.
	failed bool
}

// List returns a List that is sent by to, which is w or a ResponseWriter around it. compress permits gzip.
func (w *Writer) List(to http.ResponseWriter, mediaType string, compress bool) *List {
	return &List{w: w, to: to, mediaType: mediaType, compress: compress, slot: slot{w: w}, size: -1}
}

// BeginSelection waits until visits objects may be looked at.
func (l *List) BeginSelection(ctx context.Context, visits int) error {
	if l.slot.needed = visits >= LongList; !l.slot.needed {
		return nil
	}
	if err := l.w.Reserve(ctx, int64(visits)*pointerSize); err != nil {
		return err
	}
	return l.slot.acquire(ctx)
}

// EndSelection releases the slot. It may be called without BeginSelection.
func (l *List) EndSelection() { l.slot.release() }

// ReserveHistory reserves memory for n bytes of documents that are read from etcd for this request alone, because the
// server's memory no longer has their revision. A list that could never fit must be read in pages.
func (l *List) ReserveHistory(ctx context.Context, n int) error {
	need := 2 * int64(n) // the answer of etcd, and the documents
	if l.w.Limited() && l.w.memory.Reserved()+need > l.w.memory.Size() {
		return apierrors.NewRequestEntityTooLargeError("the list is at a revision of the past and takes more memory " +
			"than all requests together may use: limit its pages")
	}
	return l.slot.reserve(ctx, need)
}

// ReserveItems reserves the memory for encoding the selected items in a form, beside their documents, which are the
// store's. If it has to wait, the selection ends.
func (l *List) ReserveItems(ctx context.Context, form *encoding.Form, items []*storage.Object) error {
	if !l.w.Limited() {
		return nil
	}
	total, largest := 0, 0
	for _, o := range items {
		total, largest = total+len(o.JSON), max(largest, len(o.JSON))
	}
	need := max(int64(pointerSize*len(items))-l.w.memory.Reserved(), 0) + int64(min(2*listChunk, total))
	need += form.ObjectMemory(largest)
	if l.compress && total > gzipThreshold {
		need += gzipMemory
	}
	if form.Resource.WebhookConverted { // all of them are converted before the first is encoded
		need += form.ObjectMemory(total)
	}
	if l.w.memory.Try(need) {
		return nil
	}
	l.slot.release()
	return l.w.Reserve(ctx, need)
}

// BeginEncoding waits until the list may be encoded. remote means that another server converts its objects: no slot is
// held while this server waits for the answer.
func (l *List) BeginEncoding(ctx context.Context, items int, remote bool) error {
	l.slot.needed = items >= LongList && !remote
	return l.slot.acquire(ctx)
}

// Whole reports whether a list of size bytes may be encoded in one piece, and reserves the memory for that.
func (l *List) Whole(size int) bool {
	limit := l.w.memory.Size()
	return limit == 0 || int64(size) <= limit/maxWhole && l.w.memory.Try(int64(size))
}

// BeginBody begins a body of size bytes, -1 if its length is not known. The head is sent with the first chunk.
func (l *List) BeginBody(size int) {
	h := l.to.Header()
	h.Set("Content-Type", l.mediaType)
	h.Set("Cache-Control", "no-cache, private")
	l.size, l.chunk = size, listChunk
	room := 0
	switch {
	case size >= 0:
		room = min(size, l.chunk) + 4<<10
		h.Set("Content-Length", strconv.Itoa(size))
	case l.compress:
		l.chunk = gzipThreshold // it is compressed if it turns out to be longer
	}
	l.buf = make([]byte, 0, room)
	l.timer = l.w.audit.Begin(audit.Serialization)
}

// AppendBytes calls encode to append to the buffer, without sending a chunk.
func (l *List) AppendBytes(encode func(buf []byte) []byte) {
	if !l.failed {
		l.buf = encode(l.buf)
	}
}

// Append calls encode to append to the buffer, and sends a chunk once it is complete. It returns the error of encode,
// or that of ctx if its time ends while the list waits for its next slot: a part of a list must not look like all of
// it. Once the client has left it has no effect.
func (l *List) Append(ctx context.Context, encode func(buf []byte) ([]byte, error)) error {
	if l.failed {
		return nil
	}
	buf, err := encode(l.buf)
	if err != nil {
		return err
	}
	if l.buf = buf; len(buf) <= l.chunk {
		return nil
	}
	l.timer.End()
	if l.send(); l.failed {
		return nil
	}
	if err := l.slot.acquire(ctx); err != nil {
		if l.failed = errors.Is(err, context.Canceled); l.failed {
			return nil
		}
		return err
	}
	l.timer = l.w.audit.Begin(audit.Serialization)
	return nil
}

// Flush sends the rest of the body.
func (l *List) Flush() {
	if l.failed {
		return
	}
	l.timer.End()
	if l.body == nil {
		l.to.Header().Set("Content-Length", strconv.Itoa(len(l.buf)))
	}
	l.send()
}

// send sends the buffer. The slot is released before the write: the client may take its time.
func (l *List) send() {
	if l.body == nil {
		l.sendHead(max(l.size, len(l.buf)))
	}
	l.slot.release()
	if len(l.buf) > httpBuffer {
		defer l.w.guard()()
	}
	_, err := l.body.Write(l.buf)
	l.failed = err != nil
	l.buf = l.buf[:0]
}

// sendHead sends the head of the response. size is the least length of the body: the connection is corked for a long
// one.
func (l *List) sendHead(size int) {
	l.body, l.finish = compressed(l.to, l.compress, size)
	l.to.WriteHeader(http.StatusOK)
	if size > listChunk {
		l.corked = conn.Of(l.w.request)
		l.corked.Cork(conn.Answer)
	}
}

// Close ends the body, without the bytes that have not been flushed, and releases the slot.
func (l *List) Close() {
	l.slot.release()
	if l.finish != nil {
		l.finish()
	}
	if l.corked != nil {
		defer l.w.startTimeout(conn.Answer).Stop()
		_ = l.corked.Uncork() // an error means that the client has gone
	}
}
