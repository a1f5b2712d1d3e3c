package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
	"github.com/coxswain-dev/coxswain/storage"
)

// delete answers a DELETE. An object with a grace period or finalizers is marked for deletion and returned. Any other
// object is deleted, and the answer is a Status or, for some kinds, the object.
// https://kubernetes.io/docs/concepts/architecture/garbage-collection/
func (s *Server) delete(w http.ResponseWriter, r *request) error {
	options, err := s.deleteOptions(w, r)
	if err != nil {
		return err
	}
	wr := newDelete(r, options)
	if ignoresReadErrors(options) {
		return s.deleteUnread(w, wr)
	}
	o, deleted, err := s.deleteObject(r.Context(), wr, options)
	if err != nil {
		return err
	}
	if !deleted || r.res.Stored().ReturnDeleted {
		code := http.StatusOK
		if !deleted && options.OrphanDependents != nil && !*options.OrphanDependents {
			code = http.StatusAccepted // for this option alone, as in kube-apiserver
		}
		return s.writeWritten(w, wr, code, o)
	}
	responsewriter.AddWarnings(w.Header(), wr.warnings)
	return s.writeStatus(w, r.Request, metav1.Status{
		Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{
			Name: r.name, Group: r.res.Group, Kind: r.res.Plural, UID: types.UID(o.UID),
		},
	})
}

// deleteOptions reads the options from the body or the query.
func (s *Server) deleteOptions(w http.ResponseWriter, r *request) (*metav1.DeleteOptions, error) {
	options := &metav1.DeleteOptions{}
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	if len(body) == 0 {
		err = queryOptions(r, options)
	} else {
		err = s.bodyOptions(r, body, options)
	}
	if err != nil {
		return nil, err
	}
	if len(options.DryRun) > 0 {
		r.exchange().labels.DryRun = "All"
	}
	return options, query.Invalid("DeleteOptions", validation.ValidateDeleteOptions(options))
}

// newDelete begins the write of a deletion. Its options may ask for a dry run as well as its query.
func newDelete(r *request, options *metav1.DeleteOptions) *write {
	wr := beginWrite(r, nil)
	wr.options = options
	if len(options.DryRun) > 0 {
		wr.dryRun = options.DryRun
	}
	return wr
}

// queryOptions reads the options of a delete without a body from its query.
func queryOptions(r *request, o *metav1.DeleteOptions) error {
	if err := metav1.Convert_url_Values_To_v1_DeleteOptions(&r.query, o, nil); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

func (s *Server) bodyOptions(r *request, body []byte, o *metav1.DeleteOptions) error {
	body, _, err := encoding.JSONOf(s.Registry.Snapshot(), r.contentType(), body)
	if err != nil {
		return err
	}
	// Clients send the options in the version of the resource's group, or in v1.
	var kind metav1.TypeMeta
	if err := encoding.Unmarshal(body, &kind); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("error decoding: %v", err))
	}
	if kind.Kind != "" && kind.Kind != "DeleteOptions" {
		return apierrors.NewBadRequest(fmt.Sprintf("the body of a delete must be DeleteOptions, not %s", kind.Kind))
	}
	if err := encoding.Unmarshal(body, o); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("error decoding DeleteOptions: %v", err))
	}
	r.auditBody(body)
	return nil
}

// withoutGrace is the warning about an object whose grace period could not be stored.
const withoutGrace = "etcd is out of space: the object was deleted at once, without a grace period"

// deleteObject deletes the write's object, or marks it for deletion; deleted distinguishes the two. If etcd has no
// space for the mark, and the object waits for its grace period alone, it is deleted at once: otherwise no pod could
// be deleted to free space.
func (s *Server) deleteObject(ctx context.Context, wr *write, options *metav1.DeleteOptions) (
	o *storage.Object, deleted bool, err error) {
	o, deleted, err = s.markAndDelete(ctx, wr, options, true)
	if !errors.Is(err, storage.ErrNoSpace) {
		return o, deleted, err
	}
	immediate, graceful := *options, !deleted
	immediate.GracePeriodSeconds = new(int64)
	o, deleted, second := s.markAndDelete(ctx, wr, &immediate, false)
	if errors.Is(second, storage.ErrNoSpace) {
		return nil, false, err
	}
	if second == nil && deleted && graceful {
		wr.warnings = append(wr.warnings, withoutGrace)
	}
	return o, deleted, second
}

// markAndDelete deletes the write's object, or marks it for deletion; deleted distinguishes the two. With markFirst an
// object of a kind with graceful deletion is marked and then removed, in two transactions, so that its watchers see
// both. If the second one fails, the next delete or update removes the object.
func (s *Server) markAndDelete(ctx context.Context, wr *write, options *metav1.DeleteOptions, markFirst bool) (
	o *storage.Object, deleted bool, err error) {
	var marked api.Object
	o, err = s.modify(ctx, wr, func(old api.Object) (api.Object, error) {
		deleted = false
		if err := strategy.CheckPreconditions(wr.res, old, options.Preconditions); err != nil {
			return nil, err
		}
		if err := s.admitDelete(ctx, wr, old); err != nil {
			return nil, err
		}
		marked = strategy.BeforeDelete(wr.res, old, options, s.Clock.Now())
		deleted = strategy.Ended(wr.res, marked)
		wr.marks = markFirst && deleted && strategy.IsGraceful(wr.res, old)
		if deleted && !wr.marks {
			return nil, nil
		}
		return marked, nil
	})
	if err == nil && wr.marks && !wr.isDryRun() {
		o, err = s.removeMarked(ctx, wr, o, marked)
	}
	return o, deleted, err
}

// removeMarked removes an object that has just been marked and stored as obj. If another writer has removed it
// meanwhile, the marked object is returned.
func (s *Server) removeMarked(ctx context.Context, wr *write, stored *storage.Object, obj api.Object) (
	*storage.Object, error) {
	removed, err := s.remove(ctx, wr, stored, obj)
	if errors.As(err, new(*storage.Conflict)) || errors.Is(err, errLostRace) {
		removed, err = s.modify(ctx, wr, func(now api.Object) (api.Object, error) {
			if now.GetUID() != obj.GetUID() {
				return nil, storage.ErrNotFound
			}
			return nil, nil
		})
	}
	if errors.Is(err, storage.ErrNotFound) {
		return stored, nil
	}
	return removed, err
}

// deleteWorkers is how many objects of a collection are deleted concurrently.
const deleteWorkers = 16

// deleteCollection answers a DELETE of all objects that the path and the selectors select, with the list of the
// objects.
func (s *Server) deleteCollection(w http.ResponseWriter, r *request) error {
	options, err := s.deleteOptions(w, r)
	if err != nil {
		return err
	}
	if ignoresReadErrors(options) {
		return readErrorsInvalid(r, "is not allowed with DELETECOLLECTION, try again after removing the option")
	}
	q, err := s.listRequest(r)
	if err != nil {
		return err
	}
	out := r.listWriter(w)
	defer out.Close()
	l, err := s.listed(r, q, out)
	if err != nil {
		return err
	}
	warnings, err := s.deleteListed(r, options, l.Items)
	responsewriter.AddWarnings(w.Header(), warnings)
	if err != nil {
		return err
	}
	return s.writeList(r, l, out)
}

// deletions is the outcome of several deletions: some of the warnings, and the first error.
type deletions struct {
	warnings []string
	err      error
}

// add adds the outcome of one deletion. It drops warnings beyond the number that a response has.
func (d *deletions) add(warnings []string, err error) {
	for _, text := range warnings {
		if len(d.warnings) < responsewriter.MaxWarnings && !slices.Contains(d.warnings, text) {
			d.warnings = append(d.warnings, text)
		}
	}
	if d.err == nil {
		d.err = err
	}
}

// deleteListed deletes the objects of a list by several workers, and returns when all have ended. The error is the
// first one.
func (s *Server) deleteListed(r *request, options *metav1.DeleteOptions, objects []*storage.Object) ([]string, error) {
	work := make(chan *request)
	done := make(chan deletions, deleteWorkers) // one outcome of each worker
	for range deleteWorkers {
		go func() { done <- s.deleteAll(options, work) }()
	}
	var all deletions
	for _, o := range objects {
		one, err := s.deletionOf(r, o)
		if err != nil {
			all.add(nil, err)
			break
		}
		work <- one
	}
	close(work)
	for range deleteWorkers {
		one := <-done
		all.add(one.warnings, one.err)
	}
	return all.warnings, all.err
}

// deletionOf returns the deletion of one object of a collection as a request with an exchange of its own, which has
// reserved the memory that the deletion needs. Only this function waits for memory, for one object after the other; a
// worker does not. The worker closes the exchange.
func (s *Server) deletionOf(r *request, o *storage.Object) (*request, error) {
	part := &exchange{}
	if err := r.exchange().Fork(r.Context(), &part.Writer, encoding.ObjectWeight*int64(len(o.JSON))); err != nil {
		return nil, err
	}
	return r.object(part.in(r.Context()), o.Key.Namespace, o.Key.Name), nil
}

// deleteAll deletes the objects of the requests in work until that is closed. An object that does not exist any more is
// no error.
func (s *Server) deleteAll(options *metav1.DeleteOptions, work <-chan *request) deletions {
	var all deletions
	for one := range work {
		warnings, err := s.deleteOne(one, options)
		one.exchange().Close()
		if errors.Is(err, storage.ErrNotFound) {
			err = nil
		}
		all.add(warnings, err)
	}
	return all
}

// deleteOne deletes one object. It recovers from panics, since a panic outside of a request's goroutine would end the
// process.
func (s *Server) deleteOne(one *request, options *metav1.DeleteOptions) (warnings []string, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("panic while deleting", "object", one.key(one.name).String(), "panic", p,
				"stack", string(debug.Stack()))
			err = fmt.Errorf("panic while deleting %s", one.name)
		}
	}()
	wr := newDelete(one, options)
	_, _, err = s.deleteObject(one.Context(), wr, options)
	return wr.warnings, err
}
