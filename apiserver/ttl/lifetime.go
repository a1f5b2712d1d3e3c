package ttl

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// These are the limits of the annotation. etcd measures leases in whole seconds, up to 285 years.
const (
	minTTL = time.Second
	maxTTL = 100 * 365 * 24 * time.Hour
)

// Change describes a write of an object.
type Change struct {
	Kind *api.Resource
	Key  storage.Key
	// Object is the object to write. Old is the object it replaces, or nil on create.
	Object, Old api.Object
	// Rights are the rights of the writing user.
	Rights Rights
}

// Rights checks whether the user may delete the object.
type Rights interface {
	// MayDelete answers according to memory.
	MayDelete(ctx context.Context) bool
	// AuthorizeDelete returns an error if the user may not.
	AuthorizeDelete(ctx context.Context) error
}

// Effect is the effect of a write on the object's time to live.
type Effect struct {
	// Renewed is set if the time starts again. The write must then be made even if it does not change the object.
	Renewed bool
	// Lease is the lease for the object's own key, which Events have; 0 for none.
	Lease time.Duration
	// Writes belong in the object's transaction.
	Writes []storage.Write
}

// Concerns reports whether replacing old by obj can affect a time to live.
func Concerns(kind *api.Resource, obj, old api.Object) bool {
	_, set := obj.GetAnnotations()[Annotation]
	if !set && old != nil {
		_, set = old.GetAnnotations()[Annotation]
	}
	return set || kind.Expires
}

// Effect returns the effect of a write. A user needs the right to delete the object in order to set its time to
// live. A write by a user without that right does not renew the time if it leaves the annotation unchanged, as the
// writes of most controllers do. Since every such write needs the answer, Effect takes it from memory; the next
// write corrects a wrong answer.
func (l *Lifetimes) Effect(ctx context.Context, c Change) (Effect, error) {
	text, set := c.Object.GetAnnotations()[Annotation]
	var before string
	var was bool
	if c.Old != nil {
		before, was = c.Old.GetAnnotations()[Annotation]
	}
	changed := set != was || text != before
	switch {
	case !set && c.Kind.Expires:
		return Effect{Renewed: true, Lease: l.EventTTL}, nil
	case !set && !was:
		return Effect{}, nil
	case !set:
		return Effect{Writes: End(c.Kind, c.Key, c.Old)}, nil
	case !changed && c.Object.GetDeletionTimestamp() != nil:
		return Effect{Writes: End(c.Kind, c.Key, c.Old)}, nil // the deletion has begun
	case !changed && !c.Kind.Expires && !c.Rights.MayDelete(ctx) && l.counts(ctx, c.Key, c.Object):
		return Effect{}, nil
	}
	lasts, err := time.ParseDuration(text)
	if err != nil || lasts < minTTL || lasts > maxTTL {
		return Effect{}, invalid(c, text)
	}
	if changed {
		if err := c.Rights.AuthorizeDelete(ctx); err != nil {
			return Effect{}, err
		}
	}
	switch {
	case c.Kind.Expires:
		return Effect{Renewed: true, Lease: lasts}, nil
	case c.Object.GetDeletionTimestamp() != nil:
		return Effect{}, nil
	}
	writes, err := begin(c.Key, c.Object, lasts)
	return Effect{Renewed: true, Writes: writes}, err
}

func invalid(c Change, text string) error {
	return apierrors.NewInvalid(c.Kind.GVK().GroupKind(), c.Object.GetName(), field.ErrorList{
		field.Invalid(field.NewPath("metadata", "annotations").Key(Annotation), text,
			fmt.Sprintf(`must be a duration between %v and %v, such as "10m"`, minTTL, maxTTL))})
}

// begin returns the writes that start an object's time to live, or restart it.
func begin(key storage.Key, obj api.Object, lasts time.Duration) ([]storage.Write, error) {
	name := nameOf(key)
	doc, err := json.Marshal(metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: obj.GetUID()}})
	if err != nil {
		return nil, fmt.Errorf("encoding the lifetime of %s: %w", key, err)
	}
	w := storage.Write{Op: storage.Update, Expect: storage.AnyRevision, Value: doc}
	life, timer := w, w
	life.Key = storage.Key{Collection: lifetimes, Name: name}
	timer.Key, timer.TTL = storage.Key{Collection: timers, Name: name}, lasts
	return []storage.Write{life, timer}, nil
}

// End returns the writes that end the lifetime of an object, because the object is deleted or loses the annotation.
// It returns none if the object has no lifetime or is already being deleted.
func End(kind *api.Resource, key storage.Key, old api.Object) []storage.Write {
	if _, was := old.GetAnnotations()[Annotation]; !was || kind.Expires || old.GetDeletionTimestamp() != nil {
		return nil
	}
	w := storage.Write{Op: storage.Delete, Expect: storage.AnyRevision}
	life, timer := w, w
	life.Key = storage.Key{Collection: lifetimes, Name: nameOf(key)}
	timer.Key = storage.Key{Collection: timers, Name: life.Key.Name}
	return []storage.Write{life, timer}
}

// counts reports whether an object with the annotation has a lifetime. It has none if an earlier server put the
// object itself on a lease; the next write moves it off that lease.
func (l *Lifetimes) counts(ctx context.Context, key storage.Key, obj api.Object) bool {
	o, err := l.documents(lifetimes).Get(ctx, "", nameOf(key), storage.At{Any: true})
	return err == nil && o.UID == string(obj.GetUID())
}
