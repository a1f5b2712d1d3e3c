package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/google/btree"
)

// An encrypted document is damaged if its key is missing or wrong: it exists but cannot be read. It must not look as if
// it did not exist, because clients would then create it again, or treat its dependents as orphans. Reads that would
// have to return it fail with a *Damaged, all other reads succeed. Watchers get no event: for them the object keeps its
// last state until it can be read again or is deleted.

// Damaged is the error for an object that cannot be read because its document cannot be decrypted.
type Damaged struct {
	Key      Key
	Revision int64
	Err      error
}

func (d *Damaged) Error() string {
	return fmt.Sprintf("the stored %s at revision %d cannot be read: %v", d.Key, d.Revision, d.Err)
}

// Unwrap returns the reason.
func (d *Damaged) Unwrap() error { return d.Err }

// EncryptedPrefix is the prefix of every encrypted document, by Kubernetes' convention.
const EncryptedPrefix = "k8s:enc:"

var errNoKey = errors.New("this server is not configured to decrypt it")

// unreadable returns the reason why a document cannot be read. It returns nil if the document can be read, or is not
// the document of an object.
func unreadable(kv KV) error {
	if kv.Err == nil && bytes.HasPrefix(kv.Value, []byte(EncryptedPrefix)) {
		return fmt.Errorf("%s %w", EncryptionOf(kv.Value), errNoKey)
	}
	return kv.Err
}

// maxEncryptionName is the largest length of the part of a document that messages contain.
const maxEncryptionName = 128

// EncryptionOf returns the beginning of an encrypted document, which names its provider and key:
// "k8s:enc:aesgcm:v1:key1:". It contains no secret.
func EncryptionOf(value []byte) string {
	head := string(value[:min(len(value), maxEncryptionName)])
	parts := strings.SplitAfterN(head, ":", 6)
	if len(parts) < 6 { // k8s, enc, provider, version, name, and the document
		return strings.ToValidUTF8(head[:min(len(head), len(EncryptedPrefix))], "") + "…"
	}
	return strings.ToValidUTF8(strings.Join(parts[:5], ""), "�")
}

// damage is a damaged document in memory.
type damage struct {
	Damaged
	last *Object // as it could last be read, nil if it never could be
}

func newDamages() *btree.BTreeG[*damage] {
	return btree.NewG(treeDegree, func(a, b *damage) bool { return comparePaths(&a.Key, &b.Key) < 0 })
}

// damagedOf returns the error of reading an object, or nil if the object is not damaged.
func (c *Collection) damagedOf(namespace, name string) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.damaged == nil {
		return nil
	}
	if d, ok := c.damaged.Get(&damage{Damaged: Damaged{Key: Key{Namespace: namespace, Name: name}}}); ok {
		return &d.Damaged
	}
	return nil
}

// loggedDamages is the number of damaged documents of a collection that are logged as errors. With a lost key, all
// documents are damaged.
const loggedDamages = 10

// logDamage logs that a document cannot be read.
func (c *Collection) logDamage(ch change) {
	c.mu.RLock()
	level := slog.LevelError
	if c.damaged != nil && c.damaged.Len() >= loggedDamages {
		level = slog.LevelDebug
	}
	c.mu.RUnlock()
	c.store.options.Log.Log(c.store.ctx, level, "cannot read a document in etcd", "key", ch.key.String(),
		"revision", ch.revision, "err", ch.damage)
}

// setDamaged replaces an object by its damage. The caller holds the lock for writing.
func (c *Collection) setDamaged(ch change) {
	if c.damaged == nil {
		c.damaged = newDamages()
	}
	d := &damage{Damaged: Damaged{Key: ch.key, Revision: ch.revision, Err: ch.damage}}
	d.last = c.remove(ch.key)
	c.indexDelete(d.last)
	if old, ok := c.damaged.ReplaceOrInsert(d); ok && d.last == nil {
		d.last = old.last
	}
	c.revision, c.shared = ch.revision, nil
}

// repair removes the damage of an object that was written or deleted. previous is its last readable state, or nil. lost
// reports that it was deleted and this server could never read it. Clients may still know the object, from another
// server or from earlier. The caller holds the lock for writing.
func (c *Collection) repair(ch change) (previous *Object, lost bool) {
	if c.damaged == nil {
		return nil, false
	}
	d, ok := c.damaged.Delete(&damage{Damaged: Damaged{Key: ch.key}})
	if !ok {
		return nil, false
	}
	if c.damaged.Len() == 0 {
		c.damaged = nil
	}
	return d.last, d.last == nil && ch.object == nil
}

// breakWatches ends every watch of the collection with ErrExpired, and makes later watches from before the revision
// fail. At the revision there was a change without an event, so clients must list again. The caller holds the lock for
// writing.
func (c *Collection) breakWatches(revision int64) {
	fallen := c.log.restart(revision)
	c.gap, c.revision, c.shared = revision, revision, nil
	c.keptSnapshots.clear()
	c.alarms.notifyAll(fallen)
}

// DamagedIn returns the error of the first damaged object of a scope, or nil if there is none. Only the namespace and
// name of such an object are known.
func (c *Collection) DamagedIn(scope Scope) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return firstDamaged(c.damaged, scope, "", "")
}

// firstDamaged returns the error of the first damaged object of a scope with a path, below the collection, from start
// to end. If end is "", there is no upper limit.
func firstDamaged(damaged *btree.BTreeG[*damage], scope Scope, start, end string) error {
	if damaged == nil {
		return nil
	}
	var first error
	from := &damage{Damaged: Damaged{Key: Key{Namespace: scope.Namespace}}}
	if start != "" {
		from.Key = splitPath(start)
	}
	last := splitPath(end)
	damaged.AscendGreaterOrEqual(from, func(d *damage) bool {
		if end != "" && comparePaths(&d.Key, &last) > 0 {
			return false
		}
		if scope.Namespace != "" && d.Key.Namespace != scope.Namespace {
			return false
		}
		if scope.Name == "" || d.Key.Name == scope.Name {
			first = &d.Damaged
		}
		return first == nil
	})
	return first
}

// Repair rewrites every damaged object that can be read again, unchanged, and returns their number. It must be called
// after keys were restored: the write is the event that informs watchers about the object's state.
func (s *Store) Repair(ctx context.Context) int {
	repaired := 0
	s.each(func(c *Collection) {
		c.mu.RLock()
		var keys []Key
		if c.damaged != nil {
			c.damaged.Ascend(func(d *damage) bool {
				keys = append(keys, d.Key)
				return true
			})
		}
		c.mu.RUnlock()
		for _, key := range keys {
			if ctx.Err() == nil && s.repairOne(ctx, key) {
				repaired++
			}
		}
	})
	return repaired
}

func (s *Store) repairOne(ctx context.Context, key Key) bool {
	kv, err := s.stored(ctx, key)
	if err != nil || kv.Revision == 0 || unreadable(kv) != nil {
		return false
	}
	_, err = s.Commit(ctx, Write{Op: Update, Key: key, Value: kv.Value, Expect: kv.Revision, KeepTTL: true})
	if err != nil && !errors.As(err, new(*Refusal)) { // refused: another server was quicker
		s.options.Log.Warn("cannot rewrite an object that can be read again", "key", key.String(), "err", err)
	}
	return err == nil
}

// stored reads one document from etcd. Its Revision is 0 if there is none.
func (s *Store) stored(ctx context.Context, key Key) (KV, error) {
	path := key.String()
	result, err := s.backend.Range(ctx, RangeRequest{Prefix: path, Limit: 1})
	if err != nil || len(result.KVs) == 0 || result.KVs[0].Path != path {
		return KV{}, err
	}
	return result.KVs[0], nil
}

// transforming is a Backend that stores documents of some collections in another form than they have when they are
// read.
type transforming interface {
	Transforms(collection string) bool
}

// Stale reports whether a write would store an object in another form: encrypted with another key, or in plain text.
// Such an object must be written even if it does not change. If the collection is not encrypted, Stale makes no
// request.
func (s *Store) Stale(ctx context.Context, o *Object) (bool, error) {
	if b, ok := s.backend.Backend.(transforming); !ok || !b.Transforms(o.Key.Collection) {
		return false, nil
	}
	kv, err := s.stored(ctx, o.Key)
	if err != nil {
		return false, fmt.Errorf("storage: %w", err)
	}
	return kv.Revision == o.Revision && kv.Stale, nil
}

// damagedAt returns the revision of a damaged document, or 0 if the document is not damaged.
func (c *Collection) damagedAt(key Key) int64 {
	var d *Damaged
	if errors.As(c.damagedOf(key.Namespace, key.Name), &d) {
		return d.Revision
	}
	return 0
}

// keys returns the keys of all objects, including damaged ones.
func (c *Collection) keys() []Key {
	s := c.snapshot()
	keys := make([]Key, 0, s.tree.Len())
	s.tree.Ascend(func(o *Object) bool {
		keys = append(keys, o.Key)
		return true
	})
	if s.damaged != nil {
		s.damaged.Ascend(func(d *damage) bool {
			keys = append(keys, d.Key)
			return true
		})
	}
	return keys
}

// afterGap returns ErrExpired for a watch that would begin before a change without an event.
func (c *Collection) afterGap(revision int64) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if revision < c.gap {
		return fmt.Errorf("%w: at %d an object was deleted that cannot be read", ErrExpired, c.gap)
	}
	return nil
}
