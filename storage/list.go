package storage

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/btree"
)

// Scope narrows a list or a watch in ways that are cheap to index. Empty fields do not narrow.
type Scope struct {
	Namespace string
	Name      string
	// IndexValue is the value that the collection's indexed field must have.
	IndexValue string
	// Match, when not nil, further narrows. It must be pure and quick.
	Match func(*Object) bool
	// Past, when not nil, is called before a past state, or events after it, are read. Its error is
	// returned by the read; ErrExpired makes a continue token stale.
	Past func(ctx context.Context, revision int64) error
}

// holds reports whether an object is in scope.
func (s *Scope) holds(sc *schema, o *Object) bool {
	return o != nil && s.covers(sc, o) && (s.Match == nil || s.Match(o))
}

// covers does the same as holds, but ignores Match.
func (s *Scope) covers(sc *schema, o *Object) bool {
	if s.Namespace != "" && o.Key.Namespace != s.Namespace || s.Name != "" && o.Key.Name != s.Name {
		return false
	}
	if s.IndexValue == "" {
		return true
	}
	value, _ := sc.indexValue(o)
	return value == s.IndexValue
}

// isRange reports whether all objects of the collection, or of the namespace, are in scope.
func (s *Scope) isRange() bool { return s.Name == "" && s.IndexValue == "" && s.Match == nil }

// ListRequest is a LIST request.
type ListRequest struct {
	Scope Scope
	At    At
	// Limit and Continue page; see List.Continue.
	Limit    int64
	Continue string
	// Held, if not nil, is called with the size of the documents that are read from etcd because memory does not have
	// them. Its error ends the list.
	Held func(bytes int) error
	// Readable leaves out objects that cannot be read. Without it they are an error: a *Damaged.
	Readable bool
}

// List is the result of a LIST request. Items are in key order.
type List struct {
	Items    []*Object
	Revision int64
	// Continue is the token of the next page, "" at the end. It names a revision and a key,
	// holds for any server on the same etcd, and fails with a *StaleToken when the first page is
	// older than Options.CompactionInterval, or its revision than the history.
	Continue string
	// Remaining is the number of items after this page; nil when there are none, and when the number is unknown
	// because the scope is narrower than a namespace. In a list that a *StaleToken has continued it is the number in
	// the state that was compacted: an estimate, and the API promises no more.
	Remaining *int64
}

// Visits returns an upper bound for the number of objects that a list visits. It is cheap.
func (c *Collection) Visits(r *ListRequest) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	past := r.Continue != "" || r.At.Exact && r.At.Revision > 0 && !r.At.Any
	n := c.tree.Len()
	switch {
	case r.Scope.Namespace != "" && r.Scope.Name != "":
		return 1
	case past: // when there may have been more in the namespace, or of the index value, than now
	case r.Scope.IndexValue != "":
		switch t := c.index[r.Scope.IndexValue]; {
		case t == nil:
			return 0
		case r.Limit <= 0 || int64(t.Len()) <= r.Limit:
			return t.Len()
		}
	case r.Scope.Namespace != "":
		n = c.tallies.count(r.Scope.Namespace)
	}
	if r.Scope.isRange() && r.Limit > 0 {
		n = int(min(int64(n), r.Limit))
	}
	return n
}

// List reads objects in key order. It returns ErrBadToken for a Continue that this package did not create. With
// Continue, At is ignored, because the token contains the revision.
func (c *Collection) List(ctx context.Context, r ListRequest) (*List, error) {
	list, err := c.list(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", c.name, err)
	}
	return list, nil
}

func (c *Collection) list(ctx context.Context, r ListRequest) (*List, error) {
	if r.Continue != "" {
		return c.listOn(ctx, r)
	}
	if err := c.reach(ctx, r.At); err != nil {
		return nil, err
	}
	if r.At.Exact && r.At.Revision > 0 && !r.At.Any {
		return c.listAt(ctx, r, r.At.Revision, place{})
	}
	if list, err := c.listIndexed(r); list != nil || err != nil {
		return list, err
	}
	s := c.snapshot()
	return c.page(s, r, s.last, place{})
}

// listOn continues after the page that returned the token.
func (c *Collection) listOn(ctx context.Context, r ListRequest) (*List, error) {
	token, err := parseToken(r.Continue)
	if err != nil {
		return nil, err
	}
	if token.Revision == newest {
		if err := c.reach(ctx, At{}); err != nil {
			return nil, err
		}
		s := c.snapshot()
		return c.page(s, r, s.last, place{Start: token.Start, Rest: token.Rest})
	}
	var list *List
	if err = c.store.outlived(token.place); err == nil {
		list, err = c.listAt(ctx, r, token.Revision, token.place)
	}
	if errors.Is(err, ErrExpired) {
		onward := continueToken{Revision: newest, place: place{Start: token.Start, Rest: token.Rest}}
		return nil, &StaleToken{Continue: onward.String(), err: err}
	}
	return list, err
}

// listIndexed reads the small tree of one index value, if all of it fits in one page. It returns nil
// otherwise.
func (c *Collection) listIndexed(r ListRequest) (*List, error) {
	if r.Scope.IndexValue == "" {
		return nil, nil
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	sc := c.schema.Load()
	list := &List{Revision: c.reachedLocked()}
	if err := r.damaged(c.damaged, "", ""); err != nil {
		return nil, err
	}
	t := c.index[r.Scope.IndexValue]
	if t == nil {
		return list, nil
	}
	if r.Limit > 0 && int64(t.Len()) > r.Limit {
		return nil, nil
	}
	list.Items = make([]*Object, 0, t.Len())
	t.Ascend(func(o *Object) bool {
		if r.Scope.holds(sc, o) {
			list.Items = append(list.Items, o)
		}
		return true
	})
	return list, nil
}

// damaged returns an error if the part of a list from one path to another would contain an object that cannot be read.
func (r *ListRequest) damaged(damaged *btree.BTreeG[*damage], start, end string) error {
	if r.Readable {
		return nil
	}
	return firstDamaged(damaged, r.Scope, start, end)
}

// indexed narrows a snapshot to the objects of an index value, if the collection has not changed since. The index has
// no history: pages of the past use the whole snapshot.
func (c *Collection) indexed(s snapshot, value string) snapshot {
	if value == "" {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.index[value]; t != nil && c.shared == s.tree {
		s.tree = t.Clone()
	}
	return s
}

// listAt reads at exactly one revision.
func (c *Collection) listAt(ctx context.Context, r ListRequest, revision int64, from place) (*List, error) {
	if err := c.store.past(ctx, &r.Scope, revision); err != nil {
		return nil, err
	}
	if s, ok := c.snapshotAt(revision); ok {
		return c.page(s, r, revision, from)
	}
	return c.pageFromEtcd(ctx, r, revision, from)
}

// page reads a page from a snapshot.
func (c *Collection) page(s snapshot, r ListRequest, revision int64, from place) (*List, error) {
	sc := c.schema.Load()
	list := &List{Revision: revision}
	if r.Scope.isRange() && r.Scope.Namespace == "" && from.Start == "" && r.Limit <= 0 {
		list.Items = s.all()
		return list, r.damaged(s.damaged, "", "")
	}
	more := false
	c.indexed(s, r.Scope.IndexValue).ascend(r.Scope, from.Start, func(o *Object) bool {
		if !r.Scope.holds(sc, o) {
			return true
		}
		if more = r.Limit > 0 && int64(len(list.Items)) == r.Limit; more {
			return false
		}
		list.Items = append(list.Items, o)
		return true
	})
	if !more {
		return list, r.damaged(s.damaged, from.Start, "")
	}
	last := list.Items[len(list.Items)-1].Key
	if err := r.damaged(s.damaged, from.Start, belowCollection(last)); err != nil {
		return nil, err
	}
	c.keep(s)
	if r.Scope.isRange() && from.Start == "" {
		from.Rest = int64(s.count(r.Scope.Namespace))
	}
	next := continueToken{Revision: revision, place: c.store.after(from, last)}
	if rest := from.Rest - int64(len(list.Items)); rest > 0 && r.Scope.isRange() {
		list.Remaining, next.Rest = &rest, rest
	}
	list.Continue = next.String()
	return list, nil
}

// ascend calls f in key order for a superset of the objects in scope, from start on.
func (s snapshot) ascend(scope Scope, start string, f func(*Object) bool) {
	if scope.Namespace == "" && start == "" {
		s.tree.Ascend(f)
		return
	}
	pivot := &Object{Key: Key{Namespace: scope.Namespace, Name: scope.Name}}
	if start != "" {
		pivot.Key = splitPath(start)
	}
	s.tree.AscendGreaterOrEqual(pivot, func(o *Object) bool {
		if scope.Namespace != "" && o.Key.Namespace != scope.Namespace {
			return false
		}
		if scope.Namespace != "" && scope.Name != "" && o.Key.Name != scope.Name {
			return false
		}
		return f(o)
	})
}

// splitPath parses a path below its collection into a key.
func splitPath(path string) Key {
	if namespace, name, ok := strings.Cut(path, "/"); ok {
		return Key{Namespace: namespace, Name: name}
	}
	return Key{Name: path}
}

// etcdPage is the number of documents in one request when etcd answers a list.
const etcdPage = 500

// pageFromEtcd reads a page at a revision that memory no longer has.
func (c *Collection) pageFromEtcd(ctx context.Context, r ListRequest, revision int64, from place) (*List, error) {
	list := &List{Revision: revision}
	countable := r.Scope.isRange()
	request := RangeRequest{Prefix: c.name + "/", Revision: revision, Limit: etcdPage}
	if r.Limit > 0 && countable {
		request.Limit = r.Limit
	}
	if r.Scope.Namespace != "" {
		request.Prefix += r.Scope.Namespace + "/"
	}
	if from.Start != "" {
		request.Start = c.name + "/" + from.Start
	}
	sc := c.schema.Load()
	for {
		page, err := c.store.backend.Range(ctx, request)
		if err != nil {
			return nil, err
		}
		if err := r.held(page.KVs); err != nil {
			return nil, err
		}
		for i, kv := range page.KVs {
			if err := c.readableOld(&r, kv); err != nil {
				return nil, err
			}
			o := c.decodeOld(sc, kv)
			if !r.Scope.holds(sc, o) {
				continue
			}
			list.Items = append(list.Items, o)
			if r.Limit <= 0 || int64(len(list.Items)) < r.Limit {
				continue
			}
			if rest := page.Count - int64(i+1); rest > 0 {
				next := continueToken{Revision: revision, place: c.store.after(from, o.Key)}
				if countable {
					list.Remaining, next.Rest = &rest, rest
				}
				list.Continue = next.String()
			}
			return list, nil
		}
		if !page.More || len(page.KVs) == 0 {
			return list, nil
		}
		request.Start = page.KVs[len(page.KVs)-1].Path + "\x00"
	}
}

// held reports the number of bytes that were read from etcd.
func (r *ListRequest) held(kvs []KV) error {
	if r.Held == nil {
		return nil
	}
	size := 0
	for _, kv := range kvs {
		size += len(kv.Value)
	}
	return r.Held(size)
}

// readableOld returns an error if a past document belongs to a list but cannot be read.
func (c *Collection) readableOld(r *ListRequest, kv KV) error {
	err := unreadable(kv)
	if err == nil || r.Readable {
		return nil
	}
	key, notKey := ParseKey(kv.Path)
	if notKey != nil || r.Scope.Namespace != "" && key.Namespace != r.Scope.Namespace ||
		r.Scope.Name != "" && key.Name != r.Scope.Name {
		return nil
	}
	return &Damaged{Key: key, Revision: kv.Revision, Err: err}
}

// decodeOld returns the object of a past document, or nil if the document is corrupt.
func (c *Collection) decodeOld(sc *schema, kv KV) *Object {
	key, err := ParseKey(kv.Path)
	if err != nil || unreadable(kv) != nil {
		return nil
	}
	key.Collection = c.name
	o, err := sc.object(key, kv.Revision, kv.Value)
	if err != nil {
		c.store.options.Log.Error("cannot decode a document in etcd: it is left out of a list", "err", err)
		return nil
	}
	return o
}

// place is the start of a page.
type place struct {
	Start string `json:"start"` // the first path to read, below the collection; "" for all
	// Rest is the number of objects from there on at the revision of the first page; 0 if it is not known.
	// Counting them for every page would make the cost of a list grow with the square of its length. It
	// is only ever reported to clients, because they could change it.
	Rest int64 `json:"rest,omitempty"`
	// Begun is when the first page was read, in milliseconds of the Unix epoch. A client that changes
	// it gains no more than a list at the same exact revision would return.
	Begun int64 `json:"begun,omitempty"`
}

// after returns the start of the next page after a page that began at from and ended with last.
func (s *Store) after(from place, last Key) place {
	if from.Begun == 0 {
		from.Begun = s.options.Clock.Now().UnixMilli()
	}
	return place{Start: belowCollection(last) + "\x00", Begun: from.Begun}
}

// belowCollection returns the path of a key below its collection.
func belowCollection(k Key) string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// outlived returns ErrExpired if the list of a page began too long ago.
func (s *Store) outlived(p place) error {
	life := s.options.CompactionInterval
	if age := s.options.Clock.Since(time.UnixMilli(p.Begun)); life > 0 && age > life {
		return fmt.Errorf("%w: the list began %s ago", ErrExpired, age.Round(time.Second))
	}
	return nil
}

// continueToken is the content of List.Continue, which is opaque to clients.
type continueToken struct {
	Revision int64 `json:"rv"` // or newest
	place
}

// newest is used instead of a revision to continue at the current one.
const newest = -1

func (t continueToken) String() string {
	text, err := json.Marshal(t)
	if err != nil {
		panic("storage: " + err.Error()) // numbers and a string can be marshalled
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func parseToken(text string) (continueToken, error) {
	var token continueToken
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(decoded, &token)
	}
	if err == nil && (token.Revision <= 0 && token.Revision != newest || token.Start == "" || token.Rest < 0) {
		err = errors.New("no revision or no key")
	}
	if err != nil {
		return token, fmt.Errorf("%w: %w", ErrBadToken, err)
	}
	return token, nil
}

// Snapshots that a page was served from are kept for the next page. They share all unchanged nodes with the tree.
// Therefore they cost memory only if the collection changes a lot, and only for a short time.
const (
	keptCount = 4
	keptFor   = time.Minute
)

// keptSnapshots are guarded by the collection's lock.
type keptSnapshots struct {
	list []keptSnapshot // oldest first
}

type keptSnapshot struct {
	snapshot
	until time.Time
}

func (k *keptSnapshots) clear() { k.list = nil }

// prune drops the snapshots that have expired.
func (k *keptSnapshots) prune(now time.Time) {
	for len(k.list) > 0 && now.After(k.list[0].until) {
		k.list[0] = keptSnapshot{}
		k.list = k.list[1:]
	}
}

// keep keeps a snapshot for the next page, or extends its lifetime.
func (c *Collection) keep(s snapshot) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keptSnapshots.prune(now)
	snapshots := make([]keptSnapshot, 0, keptCount)
	for _, k := range c.keptSnapshots.list {
		if k.tree != s.tree {
			snapshots = append(snapshots, k)
		} else {
			s.last = max(s.last, k.last)
		}
	}
	if len(snapshots) == keptCount {
		snapshots = append(snapshots[:0], snapshots[1:]...)
	}
	c.keptSnapshots.list = append(snapshots, keptSnapshot{s, now.Add(keptFor)})
}

// snapshotAt returns the state at a revision, if memory still has it.
func (c *Collection) snapshotAt(revision int64) (snapshot, bool) {
	s := c.snapshot()
	if s.first <= revision && revision <= s.last {
		return s, true
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	now := time.Now()
	for _, k := range c.keptSnapshots.list {
		if k.first <= revision && revision <= k.last && now.Before(k.until) {
			return k.snapshot, true
		}
	}
	return snapshot{}, false
}
