package apiserver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/storage"
)

// minWatch is the shortest duration of a watch if the client sets no limit. The actual duration is random, up to twice
// as long, so that clients do not all reconnect at once.
const minWatch = 30 * time.Minute

// watch streams changes, one document each, until the client disconnects, its timeoutSeconds have passed, the kind
// ends, or the server drains.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
func (s *Server) watch(w http.ResponseWriter, r *request) error {
	q, err := s.watchRequest(r)
	if err != nil {
		return err
	}
	limit, err := r.watchLimit()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	defer context.AfterFunc(s.drain, cancel)()
	if d := r.res.Definition; d != nil {
		defer context.AfterFunc(d.Present(), cancel)()
	}
	out, err := r.exchange().Stream(ctx, w, s.RequestTimeout)
	if err != nil {
		return err
	}
	defer out.Close()
	match, err := query.Converted(r.query, r.res)
	if err != nil {
		return err
	}
	q.Previous = match != nil
	watcher, err := r.objects.Watch(ctx, q)
	if errors.Is(err, storage.ErrExpired) || errors.Is(err, storage.ErrFuture) {
		return s.streamError(w, r, err)
	}
	if err != nil {
		return err
	}
	defer watcher.Close()
	if q.InitialEvents { // the client relies on their completeness
		if err := r.objects.DamagedIn(q.Scope); err != nil {
			return err
		}
	}
	labels := labelsOf(r)
	s.metrics.Open(labels, 1)
	defer s.metrics.Open(labels, -1)
	frames := encoding.NewFramer(s.form(r))
	frames.Match = match
	objects := r.objects.CountIn(q.Scope.Namespace)
	if err := out.Begin(ctx, frames.ContentType(), objects, r.res.WebhookConverted); err != nil {
		return err
	}
	s.stream(ctx, eventWriter{r: r, out: out, frames: frames, bookmarks: q.Bookmarks}, watcher)
	return nil
}

// watchRequest reads the parameters of a watch.
func (s *Server) watchRequest(r *request) (storage.WatchRequest, error) {
	q := storage.WatchRequest{
		Bookmarks: query.Flag(r.query, "allowWatchBookmarks"),
		Any:       r.query.Get("resourceVersion") == "0",
	}
	err := query.CheckList(r.query, r.verb == "watch")
	if err != nil {
		return q, err
	}
	if q.Scope, err = r.scope(); err != nil {
		return q, err
	}
	q.From, err = query.Revision(r.query, "resourceVersion")
	q.InitialEvents = query.Flag(r.query, "sendInitialEvents")
	if q.From > 0 && !q.InitialEvents {
		q.Scope.Past = s.past(r)
	}
	if err == nil && q.From == 0 && r.query.Has("sendInitialEvents") && !q.InitialEvents {
		q.From, err = s.Store.Revision(r.Context())
	}
	return q, err
}

// watchLimit returns how long the watch may last.
func (r *request) watchLimit() (time.Duration, error) {
	text := r.query.Get("timeoutSeconds")
	seconds, err := int64(0), error(nil)
	if text != "" {
		seconds, err = strconv.ParseInt(text, 10, 64)
	}
	switch {
	case err != nil || seconds < 0:
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid timeoutSeconds %q", text))
	case seconds == 0:
		return minWatch + rand.N(minWatch), nil
	}
	return time.Duration(min(seconds, math.MaxInt64/int64(time.Second))) * time.Second, nil
}

// eventWriter encodes the events of a watch.
type eventWriter struct {
	r         *request
	out       *responsewriter.Stream
	frames    *encoding.Framer
	bookmarks bool // whether the client has asked for bookmarks
}

// stream copies the watcher's events to the client. A batch of events is one write, unless it is long.
func (s *Server) stream(ctx context.Context, w eventWriter, watcher *storage.Watcher) {
	r := w.r
	sent := s.metrics.Events(r.res.Group, r.res.Version, r.res.Plural)
	for {
		events, err := w.next(ctx, watcher)
		within := ctx
		if err != nil && r.kindEnded() { // the client still gets the events before the end
			if last, _ := watcher.Poll(); len(last) > 0 {
				events, err, within = last, nil, r.Context()
			}
		}
		if err == nil && len(events) == 0 {
			w.out.EndInitial()
			continue
		}
		if err == nil {
			err = w.send(within, events)
		}
		sent.Add(float64(len(events)))
		if err != nil {
			w.out.End(func(buf []byte) []byte { return w.appendEnd(buf, watcher, err) })
			return
		}
	}
}

// next waits for events. While the stream has initial events to send, it does not wait, and may return no events.
func (w eventWriter) next(ctx context.Context, watcher *storage.Watcher) ([]storage.Event, error) {
	if !w.out.Initial() {
		return watcher.Next(ctx)
	}
	if err := w.out.BeginBatch(ctx); err != nil {
		return nil, err
	}
	return watcher.Poll()
}

// send encodes and sends a batch of events.
func (w eventWriter) send(ctx context.Context, events []storage.Event) error {
	events, err := w.frames.Converted(ctx, events)
	for i := 0; i < len(events) && err == nil; i++ {
		err = w.append(ctx, &events[i])
	}
	if err == nil {
		err = w.out.Flush(ctx)
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // the cause of err
	}
	return err
}

func (w eventWriter) append(ctx context.Context, e *storage.Event) error {
	if e.Type == storage.Bookmark && !w.bookmarks {
		return nil // the end of the initial events, for a client that has not asked for bookmarks
	}
	memory := int64(0)
	if e.Object != nil {
		memory = w.frames.ObjectMemory(len(e.Object.JSON))
	}
	return w.out.Append(ctx, memory, func(buf []byte) ([]byte, error) { return w.frames.Append(ctx, buf, e) })
}

// appendEnd appends the last event of a watch: a bookmark if its time is over, and an ERROR event if it cannot go on.
func (w eventWriter) appendEnd(buf []byte, watcher *storage.Watcher, err error) []byte {
	ctx := w.r.Context()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		if w.bookmarks && ctx.Err() == nil {
			last := watcher.Bookmark()
			if with, err := w.frames.Append(ctx, buf, &last); err == nil {
				return with
			}
		}
		return buf
	}
	return w.frames.AppendError(buf, statusOf(err, w.r))
}

// streamError answers a watch that cannot begin at the client's revision with an ERROR event in a stream, as
// kube-apiserver does: clients look for the error there.
func (s *Server) streamError(w http.ResponseWriter, r *request, err error) error {
	frames := encoding.NewFramer(s.form(r))
	responsewriter.BeginStream(w, frames.ContentType())
	_, _ = w.Write(frames.AppendError(nil, statusOf(err, r))) // an error means that the client has gone
	return nil
}
