// Package storage keeps objects in a backend, etcd, and serves them from memory.
//
// In: JSON documents under keys, a revision to compare with, a time to live.
// Out: the same bytes with metadata.resourceVersion spliced in, lists of them at
// a revision, and streams of their changes. The package knows keys, bytes and revisions; it
// knows no kind, and imports neither api, apiserver nor etcd.
//
// The floors, from the ground: a Backend is the part of etcd that is needed here (package etcd, or memory in
// its place); a Store feeds every Collection from one etcd watch; a Collection is a snapshot
// tree and an event log; a Watcher is a cursor in that log.
//
//	store.go       Store, Options and their defaults, commits
//	follow.go      the one watch of etcd; frontier.go: consistent reads; backfill.go: history after a start
//	collection.go  reads of one object; list.go: lists, pages and continue tokens
//	watch.go       opens a Watcher, or finds that its revision is too old; watcher.go: its events and bookmarks
//	log.go         the event log of a Collection
//	history.go     which revisions can still be read; compactor.go drops the others from etcd
//	damage.go      documents that cannot be read
//
// # Concurrency
//
// A Store and its Collections may be used by any number of goroutines. Memory has one writer: the goroutine that
// follows etcd's watch (follow.go) applies every change, also this process's own, and then advances the frontier
// (frontier.go). A read first waits for the frontier if it must be fresh. Then it takes a snapshot under the
// collection's lock, and walks it without the lock. A Watcher belongs to one goroutine.
package storage

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"
)

// Key names one object. Collection is always two path segments, "<group>/<resource>" with
// "core" for the legacy group ("core/pods", "apps/deployments"). Namespace is empty for
// cluster-scoped objects.
type Key struct {
	Collection string
	Namespace  string
	Name       string
}

// String returns the key's path below the etcd prefix: "core/pods/default/web-0".
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Collection + "/" + k.Name
	}
	return k.Collection + "/" + k.Namespace + "/" + k.Name
}

// valid reports whether the key's path is well-formed and unambiguous.
func (k Key) valid() bool {
	group, resource, ok := strings.Cut(k.Collection, "/")
	return ok && group != "" && resource != "" && k.Name != "" &&
		!strings.Contains(resource, "/") && !strings.Contains(k.Namespace, "/") && !strings.Contains(k.Name, "/")
}

// ParseKey parses the result of Key.String.
func ParseKey(path string) (Key, error) {
	group := strings.IndexByte(path, '/')
	if resource := strings.IndexByte(path[group+1:], '/'); group > 0 && resource > 0 {
		k := Key{Collection: path[:group+1+resource], Name: path[group+resource+2:]}
		if namespace, name, ok := strings.Cut(k.Name, "/"); ok && namespace != "" {
			k.Namespace, k.Name = namespace, name
		}
		if k.valid() {
			return k, nil
		}
	}
	return Key{}, fmt.Errorf("storage: %q is not <group>/<resource>/[<namespace>/]<name>", path)
}

// KeyPrefix returns the beginning of all keys in etcd. It adds the slashes that prefix lacks; "" is "/registry".
func KeyPrefix(prefix string) string {
	prefix = strings.TrimRight(path.Join("/", cmp.Or(prefix, "/registry")), "/")
	return prefix + "/"
}

// Errors that callers distinguish. They arrive wrapped; use errors.Is and errors.As.
var (
	// ErrNotFound: the object does not exist (at the requested revision).
	ErrNotFound = errors.New("not found")
	// ErrExists: a create met an object of that key.
	ErrExists = errors.New("already exists")
	// ErrExpired: the revision is compacted, or a watcher fell off the tail of the log.
	ErrExpired = errors.New("the requested revision is too old")
	// ErrFuture: the revision was not reached in the time allowed.
	ErrFuture = errors.New("the requested revision is in the future")
	// ErrBadToken: a continue token that no store can have returned.
	ErrBadToken = errors.New("malformed continue token")
	// ErrTooLarge: the write is larger than etcd takes in one request.
	ErrTooLarge = errors.New("request is too large")
	// ErrNoSpace: etcd is over its quota or its disk is full; the write was rejected.
	ErrNoSpace = errors.New("etcd is out of space")
	// ErrUnavailable: etcd did not answer; the request was not sent, or it was a read.
	ErrUnavailable = errors.New("etcd is unavailable")
	// ErrUnknownOutcome: a write was sent and no answer came. It may have happened.
	ErrUnknownOutcome = errors.New("outcome of the write is unknown")
)

// Failed reports whether a commit was tried and failed in etcd, or its outcome is unknown. It must not be tried again:
// the first may have happened.
func Failed(err error) bool {
	return errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNoSpace) ||
		errors.Is(err, ErrTooLarge)
}

// Conflict is the error of a compare-and-update or compare-and-delete that found another revision than
// the expected one. Current is the object that etcd holds now.
type Conflict struct {
	Key     Key
	Current *Object
}

func (c *Conflict) Error() string {
	return fmt.Sprintf("%s was modified: it is at revision %d", c.Key, c.Current.Revision)
}

// StaleToken is the error of a list that would continue at a compacted revision. It wraps ErrExpired.
type StaleToken struct {
	// Continue continues after the same key, but at the then current revision: a client may use it if
	// it accepts pages of different states.
	Continue string
	err      error
}

func (t *StaleToken) Error() string { return t.err.Error() }

// Unwrap returns the reason why the list cannot continue.
func (t *StaleToken) Unwrap() error { return t.err }

// Refusal identifies the write that made a commit fail: its comparison did not hold, so no write of the commit was
// applied. It wraps ErrExists, ErrNotFound or a *Conflict.
type Refusal struct {
	Write int // its place in the commit
	Err   error
}

func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the reason why the write failed.
func (r *Refusal) Unwrap() error { return r.Err }
