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

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/storage"
)

// minWatch is how long a watch lasts at least when the client sets no limit; the real
// time is random up to twice that, so that clients do not all come back at once.
const minWatch = 30 * time.Minute

// watch streams changes as one JSON document each, until the client leaves, its
// timeoutSeconds have passed, or the server drains.
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
	if user := r.user(); !user.In(authn.GroupMasters) {
		if !s.watches.Take(user.Name) {
			return tooMany()
		}
		defer s.watches.Leave(user.Name)
	}
	defer s.leaveWatch()
	if !s.takeWatch() && !r.user().In(authn.GroupMasters) {
		return tooMany()
	}
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
	if q.InitialEvents { // which promise to be all that there is
		if err := r.objects.DamagedIn(q.Scope); err != nil {
			return err
		}
	}
	open := labelsOf(r, r.Request)
	s.metrics.Open(open, 1)
	defer s.metrics.Open(open, -1)
	frames := encoding.NewFramer(s.form(r))
	frames.Match = match
	to := newStreamWriter(w, r, frames, s.RequestTimeout)
	defer to.stalled.Stop()
	to.bookmarks = q.Bookmarks
	to.turn = turn{s: s, r: r, needed: r.objects.CountIn(q.Scope.Namespace) >= longList && !r.res.WebhookConverted}
	defer to.turn.leave()
	if err := to.begin(ctx); err != nil {
		return err
	}
	s.stream(ctx, to, watcher)
	return nil
}

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

// stream copies the watcher's events to the client. A batch of events is one write, unless it is long.
func (s *Server) stream(ctx context.Context, to *streamWriter, watcher *storage.Watcher) {
	r := to.r
	sent := s.metrics.Events(r.res.Group, r.res.Version, r.res.Plural)
	for {
		events, err := to.next(ctx, watcher)
		within := ctx
		if err != nil && r.kindEnded() { // the client still gets what was before the end
			if last, _ := watcher.Poll(); len(last) > 0 {
				events, err, within = last, nil, r.Context()
			}
		}
		if err == nil && len(events) == 0 {
			to.begun()
			s.leaveSeat(r.seat)
			continue
		}
		if err == nil {
			err = to.add(within, events)
		}
		if err != nil {
			to.buf = s.appendEnd(to, watcher, err)
		}
		sent.Add(float64(len(events)))
		if to.send() != nil || err != nil {
			return
		}
		to.rest()
		if to.beginning {
			to.count(len(events))
		}
	}
}

// beginStream sends the head of the response.
func beginStream(w http.ResponseWriter, frames *encoding.Framer) {
	w.Header().Set("Content-Type", frames.ContentType())
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(http.StatusOK)
}

// appendEnd says how the watch ended: with a last bookmark when its time was over, with an
// ERROR event when it could not go on.
func (s *Server) appendEnd(to *streamWriter, watcher *storage.Watcher, err error) []byte {
	buf, ctx := to.buffer(), to.r.Context()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		if to.bookmarks && ctx.Err() == nil {
			last := watcher.Bookmark()
			if with, err := to.frames.Append(ctx, buf, &last); err == nil {
				return with
			}
		}
		return buf
	}
	return to.frames.AppendError(buf, statusOf(err, to.r))
}

// streamError answers a watch that cannot begin at the revision that the client names with
// an ERROR event, as if it had begun and could not go on: kube-apiserver does so, and clients
// look for it there.
func (s *Server) streamError(w http.ResponseWriter, r *request, err error) error {
	frames := encoding.NewFramer(s.form(r))
	beginStream(w, frames)
	_, _ = w.Write(frames.AppendError(nil, statusOf(err, r))) // the client has gone; there is nobody to tell
	return nil
}
