package storage

import (
	"context"
	"errors"
	"fmt"
)

// past returns nil if the state at a revision, and the events after it, can be read.
func (s *Store) past(ctx context.Context, scope *Scope, revision int64) error {
	if oldest := s.compactor.oldest.Load(); revision < oldest {
		return fmt.Errorf("%w: %d, and history begins with %d", ErrExpired, revision, oldest)
	}
	if scope.Past == nil {
		return nil
	}
	return scope.Past(ctx, revision)
}

// SameSince returns nil if an object has had the same UID since a revision, or if no object of that name has existed
// since then. Otherwise, or if the history is compacted, it returns ErrExpired.
func (c *Collection) SameSince(ctx context.Context, namespace, name string, revision int64) error {
	key := Key{Collection: c.name, Namespace: namespace, Name: name}
	now, same, found := c.remembered(key, revision)
	if !found && now != nil {
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

// remembered returns the present object of a key, or nil. same reports whether it is the object that existed at a
// revision; found reports whether memory has that information.
func (c *Collection) remembered(key Key, revision int64) (now *Object, same, found bool) {
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
