package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/storage"
)

// An object with the annotation coxswain.dev/ttl is deleted when that time has passed since it was last written by a
// user who may delete it. Two small documents stand beside it, written and deleted in its own transactions: one in
// the collection lifetimes, which says that it has a lifetime, and one in the collection timers, on which the etcd
// lease hangs. The lease takes the timer and nothing else. A lifetime without a timer has ended, and one of the servers
// then deletes the object as a client would (expiry.go). However many servers die meanwhile, the lifetime stays until
// the deletion has begun, or is not wanted any more.
//
// Both documents depend on the object alone and are never compared: every transaction that writes them compares the
// object's revision. An object without the annotation has neither, and its writes are as if there were no such thing.
const (
	lifetimes = "claims/lifetimes"
	timers    = "claims/timers"
)

// ttlAnnotation has an object deleted after the duration it gives, counted from its last write by a user who
// may delete it.
const ttlAnnotation = "coxswain.dev/ttl"

// What the annotation may say. etcd counts leases in whole seconds, and knows none that are
// longer than 285 years.
const (
	minTTL = time.Second
	maxTTL = 100 * 365 * 24 * time.Hour
)

// lifetime is what a write does about the time to live of its object.
type lifetime struct {
	// renewed says that the time begins anew, so that the write must be done even if it changes nothing.
	renewed bool
	// lease is that of the object's own key, as Events have it; 0 for none.
	lease time.Duration
	// writes go into the object's transaction.
	writes []storage.Write
}

// lifetime is what becomes of an object's time to live by the change from old (nil on create) to obj. To set it takes
// the right to delete the object. A write by a user without that right that leaves the annotation as it is, as those
// of most controllers do, leaves the time as it is too.
func (s *Server) lifetime(ctx context.Context, r *request, obj, old api.Object) (lifetime, error) {
	text, set := obj.GetAnnotations()[ttlAnnotation]
	var before string
	var was bool
	if old != nil {
		before, was = old.GetAnnotations()[ttlAnnotation]
	}
	changed := set != was || text != before
	switch {
	case !set && r.res.Expires:
		return lifetime{renewed: true, lease: s.EventTTL}, nil
	case !set && !was:
		return lifetime{}, nil
	case !set:
		return lifetime{writes: s.endLifetime(r, old)}, nil
	case !changed && obj.GetDeletionTimestamp() != nil:
		return lifetime{writes: s.endLifetime(r, old)}, nil // what was to be done has begun
	case !changed && !r.res.Expires && !s.mayRenew(ctx, r) && s.hasLifetime(ctx, r, obj):
		return lifetime{}, nil
	}
	ttl, err := time.ParseDuration(text)
	if err != nil || ttl < minTTL || ttl > maxTTL {
		return lifetime{}, invalidAnnotation(r.res, obj.GetName(), ttlAnnotation, text,
			fmt.Sprintf(`must be a duration between %v and %v, such as "10m"`, minTTL, maxTTL))
	}
	if changed {
		if err := s.authorizeTTL(ctx, r); err != nil {
			return lifetime{}, err
		}
	}
	switch {
	case r.res.Expires:
		return lifetime{renewed: true, lease: ttl}, nil
	case obj.GetDeletionTimestamp() != nil:
		return lifetime{}, nil
	}
	writes, err := beginLifetime(r.key(r.name), obj, ttl)
	return lifetime{renewed: true, writes: writes}, err
}

// beginLifetime are the writes by which an object's time to live begins, or begins anew.
func beginLifetime(key storage.Key, obj api.Object, ttl time.Duration) ([]storage.Write, error) {
	name := lifetimeName(key)
	doc, err := json.Marshal(metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: obj.GetUID()}})
	if err != nil {
		return nil, fmt.Errorf("encoding the lifetime of %s: %w", key, err)
	}
	w := storage.Write{Op: storage.Update, Expect: storage.AnyRevision, Value: doc}
	life, timer := w, w
	life.Key = storage.Key{Collection: lifetimes, Name: name}
	timer.Key, timer.TTL = storage.Key{Collection: timers, Name: name}, ttl
	return []storage.Write{life, timer}, nil
}

// endLifetime are the writes by which the lifetime of an object ends, for it is deleted or is to stay. None are needed
// where it had none, or where its deletion had begun before.
func (s *Server) endLifetime(r *request, old api.Object) []storage.Write {
	if _, was := old.GetAnnotations()[ttlAnnotation]; !was || r.res.Expires || old.GetDeletionTimestamp() != nil {
		return nil
	}
	w := storage.Write{Op: storage.Delete, Expect: storage.AnyRevision}
	life, timer := w, w
	life.Key = storage.Key{Collection: lifetimes, Name: lifetimeName(r.key(r.name))}
	timer.Key = storage.Key{Collection: timers, Name: life.Key.Name}
	return []storage.Write{life, timer}
}

// hasLifetime reports whether the time of an object with the annotation is counted. It is not where a server wrote the
// object that kept it on a lease of its own: the next write takes it off that lease.
func (s *Server) hasLifetime(ctx context.Context, r *request, obj api.Object) bool {
	o, err := s.lifetimeDocuments(lifetimes).Get(ctx, "", lifetimeName(r.key(r.name)), storage.At{Any: true})
	return err == nil && o.UID == string(obj.GetUID())
}

// deletion is the deletion of the object that a write is about.
func deletion(r *request) authz.Attributes {
	a := attributesOf(r)
	a.Verb, a.Subresource = "delete", ""
	return a
}

// mayRenew reports whether the user may delete the object, as far as memory knows: this is asked with every write of an
// object with a time to live, and a wrong answer is put right by the next.
func (s *Server) mayRenew(ctx context.Context, r *request) bool {
	a := deletion(r)
	decision, _, _ := s.authorizer.Authorize(ctx, &a)
	return decision == authz.Allow
}

// authorizeTTL refuses a time to live that is set by a user who may not delete the object.
func (s *Server) authorizeTTL(ctx context.Context, r *request) error {
	err := s.authorize(ctx, deletion(r))
	var refused *apierrors.StatusError
	if errors.As(err, &refused) && apierrors.IsForbidden(err) {
		refused.ErrStatus.Message += fmt.Sprintf(", which setting the annotation %s takes", ttlAnnotation)
	}
	return err
}

// lifetimeName is the name of the documents about an object's lifetime: its path, with a character for the slashes that
// no name has (path segment names in k8s.io/apimachinery).
func lifetimeName(key storage.Key) string { return strings.ReplaceAll(key.String(), "/", "%") }

// lifetimeKey is the inverse of lifetimeName.
func lifetimeKey(name string) (storage.Key, error) {
	return storage.ParseKey(strings.ReplaceAll(name, "%", "/"))
}

func (s *Server) lifetimeDocuments(collection string) *storage.Collection {
	return s.Store.Collection(collection, storage.CollectionOptions{})
}
