package storage

import (
	"context"
	"errors"
	"fmt"
)

// past returns nil if the state at a revision, and the events after it, may be read.
func (s *Store) past(ctx context.Context, scope *Scope, revision int64) error {
	if oldest := s.compactor.oldest.Load(); revision < oldest {
		return fmt.Errorf("%w: %d, and history begins with %d", ErrExpired, revision, oldest)
	}
	if scope.Past == nil {
		return nil
	}
	return scope.Past(ctx, revision)
}

// SameSince is nil if an object has been the same one, by its UID, ever since a revision, or if there
// has been none of that name all the time. It is ErrExpired otherwise, or if the history is gone.
func (c *Collection) SameSince(ctx context.Context, namespace, name string, revision int64) error {
	key := Key{Collection: c.name, Namespace: namespace, Name: name}
	now, same, known := c.remembered(key, revision)
	if !known && now != nil {
		then, err := c.getExactly(ctx, key, revision)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		same = err == nil && then.UID == now.UID
	}
	if !same {
		return fmt.Errorf("%w: %s was another or none at %d", ErrExpired, key, revision)
	}
	return nil
}

// remembered returns the present object of a key, nil if there is none, and whether it is the same that
// existed at a revision, as far as memory knows.
func (c *Collection) remembered(key Key, revision int64) (now *Object, same, known bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	now, _ = c.tree.Get(&Object{Key: key})
	if revision >= c.revision || now != nil && revision >= now.Revision {
		return now, true, true
	}
	if revision < c.log.floor {
		return now, false, false
	}
	for n := c.log.after(revision); n < c.log.next; n++ {
		if e := c.log.at(n); e.key() == key {
			return now, now != nil && e.previous != nil && e.previous.UID == now.UID, true
		}
	}
	return now, true, true
}
