package apiserver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// delete answers a DELETE. An object that must wait (a grace period, finalizers) is marked
// and returned; one that need not is gone, and a Status says so.
// https://kubernetes.io/docs/concepts/architecture/garbage-collection/
func (s *Server) delete(w http.ResponseWriter, r *request) error {
	options, err := s.deleteOptions(w, r)
	if err != nil {
		return err
	}
	o, gone, err := s.deleteObject(r.Context(), r, options)
	if err != nil {
		return err
	}
	if !gone {
		code := http.StatusOK
		if options.OrphanDependents != nil && !*options.OrphanDependents {
			code = http.StatusAccepted // as ever, for this option alone
		}
		return s.writeObject(w, r, code, o)
	}
	return s.writeStatus(w, r, metav1.Status{
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
		r.query["dryRun"] = options.DryRun
	}
	return options, invalidOptions("DeleteOptions", validation.ValidateDeleteOptions(options))
}

// queryOptions reads what a delete without a body says in its query.
func queryOptions(r *request, o *metav1.DeleteOptions) error {
	if err := metav1.Convert_url_Values_To_v1_DeleteOptions(&r.query, o, nil); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

func (s *Server) bodyOptions(r *request, body []byte, o *metav1.DeleteOptions) error {
	body, err := s.asJSON(r, body)
	if err != nil {
		return err
	}
	// Clients send the options in the version of the group they talk to, or in v1.
	var kind metav1.TypeMeta
	if err := unmarshal(body, &kind); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("error decoding: %v", err))
	}
	if kind.Kind != "" && kind.Kind != "DeleteOptions" {
		return apierrors.NewBadRequest(fmt.Sprintf("the body of a delete must be DeleteOptions, not %s", kind.Kind))
	}
	if err := unmarshal(body, o); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("error decoding DeleteOptions: %v", err))
	}
	return nil
}

// deleteObject deletes r.name, or marks it. gone says which.
func (s *Server) deleteObject(ctx context.Context, r *request, options *metav1.DeleteOptions) (o *storage.Object, gone bool, err error) {
	warnings := r.warnings
	o, err = s.modify(ctx, r, func(old api.Object) (api.Object, error) {
		gone, r.warnings = false, warnings
		if err := s.admitDelete(ctx, r, old); err != nil {
			return nil, err
		}
		if err := checkPreconditions(r, old, options.Preconditions); err != nil {
			return nil, err
		}
		marked := s.mark(r.res, old, options)
		gone = ended(r.res, marked)
		if gone {
			return nil, nil
		}
		return marked, nil
	})
	return o, gone, err
}

func checkPreconditions(r *request, obj api.Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	if p.UID != nil && *p.UID != obj.GetUID() {
		return apierrors.NewConflict(r.res.GroupResource(), r.name,
			fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, obj.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion() {
		return apierrors.NewConflict(r.res.GroupResource(), r.name,
			fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *p.ResourceVersion, obj.GetResourceVersion()))
	}
	return nil
}

// mark returns the object with its deletion begun: timestamp and grace period, the
// finalizers that the propagation policy asks for, and what the kind itself notes.
func (s *Server) mark(res *api.Resource, old api.Object, options *metav1.DeleteOptions) api.Object {
	obj := old.DeepCopyObject().(api.Object)
	propagate(res, obj, options)
	var grace int64
	if res.DeleteGrace != nil {
		grace = res.DeleteGrace(obj, options.GracePeriodSeconds)
	}
	now := s.Clock.Now()
	if obj.GetDeletionTimestamp() != nil {
		if options.GracePeriodSeconds != nil {
			shorten(obj, grace, now)
		}
		return obj
	}
	at := metav1.NewTime(now.Add(graceOf(grace))).Rfc3339Copy()
	obj.SetDeletionTimestamp(&at)
	obj.SetDeletionGracePeriodSeconds(&grace)
	if obj.GetGeneration() > 0 {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	if res.Terminate != nil {
		res.Terminate(obj)
	}
	return obj
}

// graceOf is a grace period of so many seconds. What is more than a Duration holds, 292 years, is the longest Duration:
// multiplied plainly it would come out as any time at all, a negative one too.
func graceOf(seconds int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Second)
	return time.Duration(max(-most, min(seconds, most))) * time.Second
}

// shorten applies a second delete to an object that is being deleted: the grace period may
// become shorter, never longer.
func shorten(obj api.Object, grace int64, now time.Time) {
	have := obj.GetDeletionGracePeriodSeconds()
	if have == nil || grace >= *have {
		return
	}
	began := obj.GetDeletionTimestamp().Add(-graceOf(*have))
	at := metav1.NewTime(began.Add(graceOf(grace))).Rfc3339Copy()
	if at.Time.Before(now) {
		at = metav1.NewTime(now).Rfc3339Copy()
	}
	obj.SetDeletionTimestamp(&at)
	obj.SetDeletionGracePeriodSeconds(&grace)
}

// propagate sets the finalizers by which the garbage collector learns the policy.
func propagate(res *api.Resource, obj api.Object, options *metav1.DeleteOptions) {
	policy := res.DefaultPropagation
	switch {
	case options.PropagationPolicy != nil:
		policy = *options.PropagationPolicy
	case options.OrphanDependents != nil && *options.OrphanDependents:
		policy = metav1.DeletePropagationOrphan
	case options.OrphanDependents != nil:
		policy = metav1.DeletePropagationBackground
	case policy == "" || slices.ContainsFunc(obj.GetFinalizers(), isPropagation):
		return // what the finalizers say already, holds
	}
	finalizers := slices.DeleteFunc(slices.Clone(obj.GetFinalizers()), isPropagation)
	switch policy {
	case metav1.DeletePropagationOrphan:
		finalizers = append(finalizers, metav1.FinalizerOrphanDependents)
	case metav1.DeletePropagationForeground:
		finalizers = append(finalizers, metav1.FinalizerDeleteDependents)
	}
	obj.SetFinalizers(finalizers)
}

func isPropagation(finalizer string) bool {
	return finalizer == metav1.FinalizerOrphanDependents || finalizer == metav1.FinalizerDeleteDependents
}

// deleteWorkers is how many objects of a collection are deleted at once.
const deleteWorkers = 16

// deleteCollection answers a DELETE of everything that the path and the selectors cover,
// with the list of what there was.
func (s *Server) deleteCollection(w http.ResponseWriter, r *request) error {
	options, err := s.deleteOptions(w, r)
	if err != nil {
		return err
	}
	q, err := s.listRequest(r)
	if err != nil {
		return err
	}
	l, err := r.objects.List(r.Context(), q)
	if err != nil {
		return err
	}
	work := make(chan *storage.Object)
	errs := make(chan error, deleteWorkers)
	for range deleteWorkers {
		go func() { errs <- s.deleteAll(r, options, work) }()
	}
	for _, o := range l.Items {
		work <- o
	}
	close(work)
	var failed error
	for range deleteWorkers {
		if err := <-errs; failed == nil {
			failed = err
		}
	}
	if failed != nil {
		return failed
	}
	return s.writeList(w, r, l)
}

// deleteAll deletes the objects that come in, and returns the first error. One that is
// gone already is no error.
func (s *Server) deleteAll(r *request, options *metav1.DeleteOptions, work <-chan *storage.Object) error {
	var first error
	for o := range work {
		err := s.deleteOne(r, options, o)
		if err != nil && !errors.Is(err, storage.ErrNotFound) && first == nil {
			first = err
		}
	}
	return first
}

// deleteOne deletes one object of a collection. It runs outside of the request's goroutine,
// where a panic would end the server.
func (s *Server) deleteOne(r *request, options *metav1.DeleteOptions, o *storage.Object) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("panic while deleting", "key", o.Key.String(), "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic while deleting %s", o.Key)
		}
	}()
	one := *r
	one.namespace, one.name = o.Key.Namespace, o.Key.Name
	_, _, err = s.deleteObject(r.Context(), &one, options)
	return err
}
