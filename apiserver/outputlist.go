package apiserver

import (
	"io"
	"net/http"
	"strconv"

	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/conn"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// writeList answers with a list. Its items are encoded while it is sent.
func (s *Server) writeList(w http.ResponseWriter, r *request, l *storage.List) error {
	form := s.form(r)
	out := listWriter{s: s, to: w, r: r, turn: turn{s: s, r: r, begun: true,
		needed: len(l.Items) >= longList && !r.res.WebhookConverted}}
	defer out.close()
	if err := out.turn.take(r.Context()); err != nil {
		return err
	}
	body, err := form.List(r.Context(), l, r.whole)
	if err != nil {
		return err
	}
	if r.audit.Responses() {
		s.auditList(r, l)
	}
	return out.write(body)
}

// listChunk is about how many bytes of a list are held back before some are sent. A long list leaves in few system
// calls: TLS by itself makes one of each of its records of 16 KiB. An error before that is answered with a Status, and
// a later one cuts the response off.
const listChunk = 64 << 10

// listWriter sends a list in chunks. It encodes a long one only while it has a turn.
type listWriter struct {
	s    *Server
	turn turn
	to   http.ResponseWriter
	r    *request
	buf  []byte
	body io.Writer // once the header is sent: to, or a compressor
	done []func()
}

func (w *listWriter) write(b *encoding.ListBody) error {
	h := w.to.Header()
	h.Set("Content-Type", w.r.out.Media)
	h.Set("Cache-Control", "no-cache, private")
	chunk, begin := listChunk, 0
	if b.Size >= 0 {
		begin = min(b.Size, chunk) + 4<<10
		h.Set("Content-Length", strconv.Itoa(b.Size))
	} else if w.r.out.Gzip {
		chunk = gzipThreshold // from which size on it is compressed
	}
	var err error
	timer := w.r.audit.Begin(audit.Serialization)
	w.buf = b.AppendHead(make([]byte, 0, begin))
	for i := range b.Len {
		if w.buf, err = b.AppendItem(w.r.Context(), w.buf, i); err != nil {
			return err
		}
		if len(w.buf) <= chunk {
			continue
		}
		timer.End()
		if w.send(max(b.Size, len(w.buf))) != nil || w.turn.take(w.r.Context()) != nil {
			return nil // the client has gone
		}
		timer = w.r.audit.Begin(audit.Serialization)
	}
	w.buf = b.AppendTail(w.buf)
	timer.End()
	if w.body == nil {
		h.Set("Content-Length", strconv.Itoa(len(w.buf)))
	}
	_ = w.send(len(w.buf))
	return nil
}

// send sends what is held back of a list of at least so many bytes.
func (w *listWriter) send(size int) error {
	if w.body == nil {
		var done func()
		w.body, done = compressed(w.to, w.r.out, size)
		w.done = append(w.done, done)
		w.to.WriteHeader(http.StatusOK)
		if size > listChunk {
			connection := conn.Of(w.r.Request)
			connection.Cork(conn.Answer)
			w.done = append(w.done, func() {
				defer observed(w.to).lend(conn.Answer).Return()
				_ = connection.Uncork()
			})
		}
	}
	w.turn.leave()
	err := w.sendHeld()
	w.buf = w.buf[:0]
	return err
}

func (w *listWriter) sendHeld() error {
	if len(w.buf) > httpBuffer {
		defer w.s.sending(w.to)()
	}
	_, err := w.body.Write(w.buf)
	return err
}

func (w *listWriter) close() {
	w.turn.leave()
	for _, done := range w.done {
		done()
	}
}
