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

// The limits of the annotation. etcd counts leases in whole seconds, and has none that are longer than 285 years.
const (
	minTTL = time.Second
	maxTTL = 100 * 365 * 24 * time.Hour
)

// Change is a write of an object.
type Change struct {
	Kind *api.Resource
	Key  storage.Key
	// Object is what is written, Old what it replaces; nil on create.
	Object, Old api.Object
	// Rights are the user's.
	Rights Rights
}

// Rights reports whether the user of a write may delete its object.
type Rights interface {
	// MayDelete answers as far as memory knows.
	MayDelete(ctx context.Context) bool
	// AuthorizeDelete returns the refusal, if the user may not.
	AuthorizeDelete(ctx context.Context) error
}

// Effect is that of a write on the time to live of its object.
type Effect struct {
	// Renewed reports that the time begins anew, so that the write must be done even if it changes nothing.
	Renewed bool
	// Lease is that of the object's own key, as Events have it; 0 for none.
	Lease time.Duration
	// Writes go into the object's transaction.
	Writes []storage.Write
}

// Concerns reports whether a write of an object, which replaces old, can have an effect.
func Concerns(kind *api.Resource, obj, old api.Object) bool {
	_, set := obj.GetAnnotations()[Annotation]
	if !set && old != nil {
		_, set = old.GetAnnotations()[Annotation]
	}
	return set || kind.Expires
}

// Effect returns the effect of a write, by the objects as they are stored. To set the time takes the right to
// delete the object. A write by a user without that right that leaves the annotation as it is, as those of most
// controllers do, leaves the time as it is too: that right is asked for with every write of an object with a time
// to live, and a wrong answer is put right by the next.
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

// begin are the writes by which an object's time to live begins, or begins anew.
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

// End are the writes by which the lifetime of an object ends, for it is deleted or is to stay. None are needed
// where it had none, or where its deletion had begun before.
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

// counts reports whether the time of an object with the annotation is counted. It is not where a server wrote the
// object that kept it on a lease of its own: the next write takes it off that lease.
func (l *Lifetimes) counts(ctx context.Context, key storage.Key, obj api.Object) bool {
	o, err := l.documents(lifetimes).Get(ctx, "", nameOf(key), storage.At{Any: true})
	return err == nil && o.UID == string(obj.GetUID())
}
