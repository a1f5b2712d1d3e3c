package informer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/internal/backoff"
)

const (
	// leastWatch and mostWatch bound the timeoutSeconds of a watch. The value is random, so that the watches of
	// many informers do not end together.
	leastWatch, mostWatch = 5 * time.Minute, 10 * time.Minute
	// leastPause is the pause after the first failure. It doubles with each further one, up to mostPause.
	leastPause, mostPause = 50 * time.Millisecond, 30 * time.Second
	// healthy is the time without a failure after which the pauses start again from leastPause.
	healthy = 2 * time.Minute
	// restful is the shortest pause during which an informer does not count as busy, and the first one that is
	// logged as a warning.
	restful = time.Second
	// pageSize limits a page of a list that the server may have to read from etcd.
	pageSize = 500
)

// reflector keeps an informer's copy up to date. It belongs to the informer's goroutine, which alone calls its
// methods and reads its fields; they need no lock.
type reflector struct {
	*Informer
	// listed is set when a watch from the informer's version brings the copy up to date. It is unset when the
	// server no longer has that version's history (410 Gone), or does not have the version yet.
	listed bool
	// noRev makes the next list ask for the newest state instead of one that is not older than the copy: the server
	// does not know the informer's version any more, or not yet.
	noRev bool
	// noWatch is set for good when the server rejects lists in the form of watches.
	noWatch bool
	pauses  pauses
}

// run lists and watches until ctx ends.
func (r *reflector) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.follow(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if r.onError != nil {
			r.onError(err)
		}
		r.pause(ctx, err)
	}
}

// follow opens one watch, after a list if one is needed, and handles its events until it ends. It returns nil if
// the watch ended normally, and an error if a pause should follow. A watch that ends without an event within a
// second counts as an error, so that a server which closes each watch at once is not asked in a tight loop.
func (r *reflector) follow(ctx context.Context) error {
	var open *stream
	if !r.listed {
		var err error
		if open, err = r.begin(ctx); err != nil {
			return err
		}
	}
	if open == nil {
		var err error
		open, err = r.source.watch(ctx, watchOptions(r.LastSyncResourceVersion()))
		if err != nil {
			return r.failed(err)
		}
	}
	defer open.Close()
	events, began := 0, time.Now()
	for {
		kind, o, err := open.Decode()
		if err == nil {
			err = r.take(kind, o)
			events++
		}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case ended(err) && (events > 0 || time.Since(began) > time.Second):
			return nil
		default:
			return r.failed(fmt.Errorf("watch %s: %w", &r.source, err))
		}
	}
}

// failed returns its error. If the error says that the server does not have the informer's version, the next follow
// lists again.
func (r *reflector) failed(err error) error {
	if outdated(err) {
		r.listed, r.noRev = false, true
	}
	return err
}

func outdated(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// ended reports whether a stream ended, in order or in the middle of an event. All events that were decoded before
// were complete.
func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

func watchOptions(version string) metav1.ListOptions {
	seconds := int64((leastWatch + rand.N(mostWatch-leastWatch)).Seconds())
	return metav1.ListOptions{
		Watch: true, ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	}
}

// begin makes the copy equal to the server's state. It returns a watch that continues from there, or nil if the
// caller must open one.
func (r *reflector) begin(ctx context.Context) (*stream, error) {
	if !r.noWatch {
		open, err := r.streamList(ctx)
		if status := apierrors.APIStatus(nil); err == nil || !errors.As(err, &status) || retriable(err) {
			return open, err
		}
		// Servers without streamed lists answer Invalid. Any other rejection, such as that of an unknown resource,
		// will fail the plain list as well.
		r.noWatch = apierrors.IsInvalid(err)
	}
	return nil, r.list(ctx)
}

// retriable reports whether a plain list would get the same error.
func retriable(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) ||
		apierrors.IsServiceUnavailable(err)
}

// streamList reads a list in the form of a watch (KEP-3157): the server then needs memory for one object at a time.
// The list ends with an annotated bookmark, and the same stream goes on as the watch. The caller closes the stream.
func (r *reflector) streamList(ctx context.Context) (_ *stream, err error) {
	options := watchOptions("")
	options.SendInitialEvents, options.ResourceVersionMatch = new(true), metav1.ResourceVersionMatchNotOlderThan
	open, err := r.source.watch(ctx, options)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			open.Close()
		}
	}()
	list := map[string]runtime.Object{}
	for {
		kind, o, err := open.Decode()
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", &r.source, err)
		}
		switch kind {
		case watch.Error:
			return nil, apierrors.FromObject(o)
		case watch.Bookmark:
			if m, err := meta.Accessor(o); err == nil && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "" {
				return open, r.begins(list, m.GetResourceVersion())
			}
		case watch.Deleted:
			key, err := cache.MetaNamespaceKeyFunc(o)
			if err != nil {
				return nil, err
			}
			delete(list, key)
		default:
			if err := r.collect(list, o); err != nil {
				return nil, err
			}
		}
	}
}

// list reads a plain list. The first one may be as old as the server's cache (resourceVersion 0). Later ones must
// not be older than the copy, or the informer would go back in time.
func (r *reflector) list(ctx context.Context) error {
	options := metav1.ListOptions{ResourceVersion: "0"}
	switch {
	case r.noRev: // from etcd, in pages
		options.ResourceVersion, options.Limit = "", pageSize
	case r.LastSyncResourceVersion() != "":
		options.ResourceVersion = r.LastSyncResourceVersion()
	}
	list := map[string]runtime.Object{}
	for {
		page, err := r.source.page(ctx, options)
		if err != nil {
			return r.failed(err)
		}
		err = meta.EachListItem(page, func(o runtime.Object) error { return r.collect(list, o) })
		if err != nil {
			return fmt.Errorf("list %s: %w", &r.source, err)
		}
		m, err := meta.ListAccessor(page)
		if err != nil {
			return fmt.Errorf("list %s: %w", &r.source, err)
		}
		if m.GetContinue() == "" {
			return r.begins(list, m.GetResourceVersion())
		}
		options.ResourceVersion, options.Continue = "", m.GetContinue()
	}
}

// collect adds an object to an unfinished list.
func (r *reflector) collect(list map[string]runtime.Object, o runtime.Object) error {
	o, err := r.transformed(o)
	if err != nil {
		return err
	}
	key, err := cache.MetaNamespaceKeyFunc(o)
	if err != nil {
		return err
	}
	list[key] = o
	return nil
}

func (r *reflector) transformed(o runtime.Object) (runtime.Object, error) {
	if r.transform == nil {
		return o, nil
	}
	transformed, err := r.transform(o)
	if err != nil {
		return nil, err
	}
	return transformed.(runtime.Object), nil
}

// begins makes the copy equal to a complete list, and from then on watches suffice.
func (r *reflector) begins(list map[string]runtime.Object, version string) error {
	if err := r.replace(list, version); err != nil {
		return err
	}
	r.reached(version)
	r.listed, r.noRev = true, false
	if !r.HasSynced() {
		close(r.synced)
	}
	return nil
}

// take handles one event of a watch. The revision advances after the handlers have returned, so that Busy never
// reports a change as seen too early. A bookmark advances the revision alone.
func (r *reflector) take(kind watch.EventType, o runtime.Object) error {
	if kind == watch.Error {
		return apierrors.FromObject(o)
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	version := m.GetResourceVersion()
	switch kind {
	case watch.Added, watch.Modified:
		if o, err = r.transformed(o); err == nil {
			err = r.keep(o)
		}
	case watch.Deleted:
		if o, err = r.transformed(o); err == nil {
			err = r.drop(o)
		}
	}
	if err == nil {
		r.reached(version)
	}
	return err
}

// reached records that the handlers have seen all changes up to a version.
func (r *reflector) reached(version string) {
	r.version.Store(version)
	r.store.Bookmark(version)
	if revision, err := strconv.ParseInt(version, 10, 64); err == nil {
		r.revision.Store(revision)
	}
	r.resting.Store(false)
}

// pause waits after an error, at least as long as the server asks for, up to mostPause.
func (r *reflector) pause(ctx context.Context, err error) {
	pause := r.pauses.next(time.Now())
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		pause = max(pause, min(mostPause, time.Duration(seconds)*time.Second))
	}
	r.resting.Store(pause >= restful)
	level := slog.LevelDebug
	if pause >= restful {
		level = slog.LevelWarn
	}
	r.log.Log(ctx, level, "failed to list or watch, will retry", "resource", &r.source, "after", pause, "err", err)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// pauses holds the length of the pauses, which grow with failures that follow each other closely.
type pauses struct {
	last time.Time
	wait.Backoff
}

// next returns the pause after a failure. Up to half of it is random, as in client-go: hundreds of informers fail
// together when an API server ends.
func (p *pauses) next(now time.Time) time.Duration {
	if now.Sub(p.last) > healthy {
		p.Backoff = backoff.Doubling(leastPause, mostPause)
		p.Jitter = 1
	}
	p.last = now
	return p.Step()
}
