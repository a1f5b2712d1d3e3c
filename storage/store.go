package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// CommitResult holds the revision of the transaction and, for each write in order, the object as it is
// stored now (for Delete: the object as it was, with Revision set to the commit's).
type CommitResult struct {
	Revision int64
	Objects  []*Object
}

// Store is everything below one etcd prefix: durable in etcd, readable from memory.
//
// Writes go to etcd and come back through the one watch, like those of other stores; the writer puts
// nothing into memory. So any number of stores, in any number of processes, may share one etcd, and
// memory holds only what etcd has delivered, in etcd's order.
type Store struct {
	backend  *meter
	options  Options
	base     int64 // the revision of the first snapshot: where every log begins
	frontier frontier
	question question
	handover handover
	// trouble is why memory is not in step with etcd, nil while it is.
	trouble   atomic.Pointer[error]
	doubts    chan struct{} // signals follow that its watch may have fallen silent
	compactor compactor
	crowded   chan struct{} // wakes upkeep when a write failed for lack of space
	madeRoom  time.Time     // when upkeep last made room
	// followed is closed when etcd has opened the watch for the first time, or has failed to.
	followed     chan struct{}
	followedOnce sync.Once
	recalling    chan struct{} // holds a token while history is read
	history      historyWeight

	ctx     context.Context // ends with the store
	stop    context.CancelFunc
	running sync.WaitGroup

	mu          sync.RWMutex
	collections map[string]*Collection
}

// Options tune a Store. The zero value is what the server uses.
type Options struct {
	// LogEvents and LogBytes bound each collection's event log. Zero: 16384 and 32 MiB.
	LogEvents int
	LogBytes  int64
	// RecallBytes is how large etcd's history may be to be read after a start, so that watches can go on from before
	// it; 0 is no limit. Reading it takes memory, in etcd and here, that depends on what clients have written.
	RecallBytes int64
	// HistoryRetention is how far back exact reads can go, and Collection.Watch where the log does: this long, and up
	// to one CompactionInterval more. Zero: 1 h.
	HistoryRetention time.Duration
	// CompactionInterval is how often older history is compacted, and how long a continue token is
	// valid; no history is kept for a shorter time. Zero: 5 m; negative: history is never compacted,
	// and tokens never expire.
	CompactionInterval time.Duration
	// DefragmentInterval, when positive, is how often etcd is defragmented if that frees a quarter of
	// its file or more. It is for an etcd that is not shared, because etcd serves nothing meanwhile.
	DefragmentInterval time.Duration
	// Synchronous makes Commit wait until memory has what it wrote. Without, a writer's next write may be made from an
	// older state, meet a conflict, and be made once more: a test that counts what a write causes wants it once.
	Synchronous bool
	// Clock measures these intervals. Nil: the real clock.
	Clock clock.WithTicker
	// Log receives the log lines of the store. Nil: slog.Default.
	Log *slog.Logger
}

const (
	defaultLogEvents = 16384
	defaultLogBytes  = 32 << 20

	defaultHistoryRetention   = time.Hour
	defaultCompactionInterval = 5 * time.Minute

	// openPage is how many documents are read at a time when a store opens.
	openPage = 1000
)

func (o *Options) setDefaults() {
	if o.LogEvents <= 0 {
		o.LogEvents = defaultLogEvents
	}
	if o.LogBytes <= 0 {
		o.LogBytes = defaultLogBytes
	}
	if o.HistoryRetention <= 0 {
		o.HistoryRetention = defaultHistoryRetention
	}
	if o.CompactionInterval == 0 {
		o.CompactionInterval = defaultCompactionInterval
	}
	o.HistoryRetention = max(o.HistoryRetention, o.CompactionInterval)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
}

// Open reads everything below the backend's prefix, starts the one watch over it and returns
// when the snapshot is complete. Close the store before the backend.
func Open(ctx context.Context, b Backend, o Options) (*Store, error) {
	o.setDefaults()
	m := newMeter(b)
	s := &Store{
		backend: m, options: o, collections: map[string]*Collection{},
		compactor: compactor{backend: m, log: o.Log, clock: o.Clock, interval: o.CompactionInterval,
			retention: o.HistoryRetention},
		doubts:   make(chan struct{}, 1),
		crowded:  make(chan struct{}, 1),
		followed: make(chan struct{}), recalling: make(chan struct{}, 1),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.question.ask = s.askRevision
	revision, err := s.readFirst(ctx)
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("storage: open: %w", err)
	}
	s.base = revision
	for _, c := range s.collections {
		c.log.floor, c.revision = revision, revision
	}
	s.frontier.advance(revision)
	s.running.Go(s.follow)
	s.running.Go(s.upkeep)
	// etcd makes a watch that begins in the past wait for the next of ten rounds a second. The first
	// write to an open store should not have to wait for that.
	select {
	case <-s.followed:
	case <-ctx.Done():
		s.Close()
		return nil, fmt.Errorf("storage: open: %w", ctx.Err())
	}
	return s, nil
}

// Close stops the watch and ends all Watchers with ErrUnavailable. It waits for its goroutines.
func (s *Store) Close() error {
	s.stop()
	s.running.Wait()
	s.recalling <- struct{}{} // history is no longer read
	<-s.recalling
	s.question.close()
	return nil
}

// openPatience is how long a store waits for an etcd that does not serve yet: servers are often started
// together.
const openPatience = 30 * time.Second

// readFirst reads the first snapshot.
func (s *Store) readFirst(ctx context.Context) (int64, error) {
	giveUp := time.Now().Add(openPatience)
	for {
		revision, err := s.readAll(ctx, s.load)
		if !errors.Is(err, ErrUnavailable) || ctx.Err() != nil || time.Now().After(giveUp) {
			return revision, err
		}
		s.options.Log.Warn("etcd is not there yet", "err", err)
		clear(s.collections) // read at another revision
		select {
		case <-time.After(retryMin):
		case <-ctx.Done():
		}
	}
}

var errClosed = fmt.Errorf("%w: the store is closed", ErrUnavailable)

// Ready returns nil while etcd answers and takes writes, and the watch is in step; otherwise the error
// describes the problem.
func (s *Store) Ready(ctx context.Context) error {
	if trouble := s.trouble.Load(); trouble != nil {
		return fmt.Errorf("storage: not in step with etcd: %w", *trouble)
	}
	// First, because an etcd whose data is corrupt answers no other request.
	status, err := s.backend.Status(ctx)
	if err == nil {
		err = status.trouble()
	}
	if err == nil {
		_, err = s.Revision(ctx)
	}
	if err != nil {
		return fmt.Errorf("storage: %w", err)
	}
	return nil
}

// Commit applies all writes in one etcd transaction, or none, and returns when etcd has it on disk. Unless the store is
// Synchronous it does not wait for memory: a read that must see the commit is a consistent one, or one at a revision
// not older than the result's. When it has returned, whatever the outcome, the caller may reuse the
// writes' values.
func (s *Store) Commit(ctx context.Context, writes ...Write) (*CommitResult, error) {
	drafts := make([]draft, len(writes))
	defer func() {
		for _, d := range drafts {
			if d.scanner != nil {
				d.scanner.release()
			}
		}
	}()
	if err := s.scanWrites(writes, drafts); err != nil {
		return nil, fmt.Errorf("storage: commit: %w", err)
	}
	outcome, err := s.backend.Commit(ctx, writes)
	if err != nil {
		s.noticeCrowding(err)
		return nil, fmt.Errorf("storage: commit: %w", err)
	}
	if !outcome.Applied {
		return nil, s.refusal(writes, outcome)
	}
	result := &CommitResult{Revision: outcome.Revision, Objects: make([]*Object, len(writes))}
	for i, w := range writes {
		if w.Op == Check {
			continue
		}
		if w.Op != Delete {
			w.Key.Collection = s.collection(w.Key.Collection).name
			result.Objects[i] = drafts[i].scanner.object(w.Key, outcome.Revision)
			s.handover.give(&s.frontier, result.Objects[i], drafts[i].schema)
			continue
		}
		result.Objects[i], err = s.schemaOf(w.Key.Collection).object(w.Key, outcome.Revision, outcome.Before[i].Value)
		if err != nil { // it was corrupt, or did not exist, and is gone now
			result.Objects[i] = &Object{Key: w.Key, Revision: outcome.Revision}
		}
	}
	if s.options.Synchronous {
		s.awaitOwn(result.Revision)
	}
	return result, nil
}

// draft is a scanned document, and its place in the commit.
type draft struct {
	scanner *scanner
	schema  *schema
}

// scanWrites rejects documents that etcd would accept but that could not be read back. It leaves a
// scanner for each document, which makes the object once its revision is known.
func (s *Store) scanWrites(writes []Write, drafts []draft) error {
	if len(writes) == 0 {
		return errors.New("nothing to write")
	}
	for i, w := range writes {
		if !w.Key.valid() {
			return fmt.Errorf("%q is not a key", w.Key)
		}
		if w.Op == Create && w.Expect != 0 || w.Op != Create && w.Expect <= 0 &&
			(w.Op == Check || w.Expect != AnyRevision) {
			return fmt.Errorf("%s: no write can expect revision %d", w.Key, w.Expect)
		}
		if w.Op == Delete || w.Op == Check {
			continue
		}
		drafts[i] = draft{scanners.Get().(*scanner), s.schemaOf(w.Key.Collection)}
		if err := drafts[i].scanner.scan(drafts[i].schema, w.Value); err != nil {
			return fmt.Errorf("%s: %w", w.Key, err)
		}
		if drafts[i].scanner.revision.found {
			return fmt.Errorf("%s: the document has a metadata.resourceVersion", w.Key)
		}
	}
	return nil
}

// refusal explains a failed compare by the first write that did not pass it.
func (s *Store) refusal(writes []Write, outcome *Outcome) error {
	for i, w := range writes {
		before := outcome.Before[i]
		switch {
		case before.Revision == w.Expect, w.Expect == AnyRevision:
		case w.Op == Create:
			return &Refusal{i, fmt.Errorf("%s: %w", w.Key, ErrExists)}
		case before.Revision == 0:
			return &Refusal{i, fmt.Errorf("%s: %w", w.Key, ErrNotFound)}
		default:
			if err := unreadable(before); err != nil {
				return &Refusal{i, &Damaged{Key: w.Key, Revision: before.Revision, Err: err}}
			}
			current, err := s.schemaOf(w.Key.Collection).object(w.Key, before.Revision, before.Value)
			if err != nil {
				return fmt.Errorf("storage: commit: %w", err)
			}
			return &Refusal{i, &Conflict{Key: w.Key, Current: current}}
		}
	}
	return fmt.Errorf("storage: commit: %w: etcd gave no reason to refuse it", ErrUnavailable)
}

// CollectionOptions list the values to extract when a document is scanned.
type CollectionOptions struct {
	// Fields are JSON paths that field selectors may name ("spec.nodeName",
	// "involvedObject.kind"). metadata.name and metadata.namespace need not be named.
	Fields []string
	// Index, when not empty, is one of Fields for which lists and watches by equality are
	// indexed (pods: "spec.nodeName").
	Index string
}

// Collection returns the named collection, opening it with these options on first use.
// Opening is cheap and may happen while the server runs; opening it again with other
// options rescans it.
func (s *Store) Collection(name string, o CollectionOptions) *Collection {
	c := s.collection(name)
	c.open(o)
	return c
}

// collection returns the named collection, opened or not.
func (s *Store) collection(name string) *Collection {
	s.mu.RLock()
	c := s.collections[name]
	s.mu.RUnlock()
	if c != nil {
		return c
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c = s.collections[name]; c == nil {
		name = strings.Clone(name)
		c = newCollection(s, name)
		s.collections[name] = c
	}
	return c
}

func (s *Store) schemaOf(collection string) *schema {
	s.mu.RLock()
	c := s.collections[collection]
	s.mu.RUnlock()
	if c == nil {
		return plainSchema
	}
	return c.schema.Load()
}

// Collections names those that hold at least one object, opened or not, sorted.
func (s *Store) Collections() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var names []string
	for name, c := range s.collections {
		if c.Count() > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// each calls f with every collection, without the lock.
func (s *Store) each(f func(*Collection)) {
	s.mu.RLock()
	all := make([]*Collection, 0, len(s.collections))
	for _, c := range s.collections {
		all = append(all, c)
	}
	s.mu.RUnlock()
	for _, c := range all {
		f(c)
	}
}

// change is a Change that was understood: a key and, unless deleted, its object.
type change struct {
	key      Key
	revision int64
	object   *Object // nil: deleted
	schema   *schema // that object was made with
	damage   error   // why the document cannot be read
}

// understand scans a document. A document that is not an object's is logged and left out.
func (s *Store) understand(kv KV) (change, bool) {
	key, err := ParseKey(kv.Path)
	if err != nil {
		s.options.Log.Warn("left out of memory: unknown path in etcd", "path", kv.Path, "revision", kv.Revision)
		return change{}, false
	}
	c := s.collection(key.Collection)
	key.Collection = c.name
	ch := change{key: key, revision: kv.Revision, schema: c.schema.Load()}
	if ch.damage = unreadable(kv); ch.damage != nil {
		c.logDamage(ch)
		return ch, true
	}
	if kv.Value == nil {
		return ch, true
	}
	if ch.object, err = ch.schema.object(key, kv.Revision, kv.Value); err != nil {
		// An object whose document was overwritten with garbage no longer exists for readers.
		s.options.Log.Error("left out of memory: corrupt document in etcd", "err", err)
	}
	return ch, true
}

// load takes one document of the first snapshot.
func (s *Store) load(kv KV) {
	if ch, ok := s.understand(kv); ok && (ch.object != nil || ch.damage != nil) {
		s.collection(ch.key.Collection).load(ch)
	}
}

// readAll passes every document of one revision to f, page by page, and returns the revision.
func (s *Store) readAll(ctx context.Context, f func(KV)) (int64, error) {
	r := RangeRequest{Limit: openPage}
	for {
		page, err := s.backend.Range(ctx, r)
		if err != nil {
			return 0, err
		}
		if r.Revision == 0 {
			r.Revision = page.Revision
		}
		for _, kv := range page.KVs {
			f(kv)
		}
		if !page.More || len(page.KVs) == 0 {
			return r.Revision, nil
		}
		r.Start = page.KVs[len(page.KVs)-1].Path + "\x00"
	}
}

// A watch that broke is opened again after retryMin, and ever more slowly up to retryMax.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second
)

// follow keeps memory in step with etcd until the store is closed.
func (s *Store) follow() {
	pause := retryMin
	for {
		before := s.frontier.now()
		err := s.followOnce()
		if s.ctx.Err() != nil {
			return
		}
		s.trouble.Store(&err)
		s.options.Log.Warn("the watch over etcd broke", "frontier", s.frontier.now(), "err", err)
		if errors.Is(err, ErrExpired) {
			if err = s.resync(); err == nil {
				continue
			}
			s.trouble.Store(&err)
		}
		if s.frontier.now() > before {
			pause = retryMin
		}
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
			return
		}
		pause = min(2*pause, retryMax)
	}
}

// followOnce applies the changes of one watch until it ends, and returns the reason.
func (s *Store) followOnce() error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	select {
	case <-s.doubts: // they were about the last
	default:
	}
	batches := s.backend.Watch(ctx, FollowRequest{From: s.frontier.now() + 1})
	defer func() {
		cancel()
		for range batches { // until the backend has released the watch
		}
	}()
	for {
		select {
		case batch, ok := <-batches:
			s.followedOnce.Do(func() { close(s.followed) })
			if !ok {
				return fmt.Errorf("%w: the watch ended", ErrUnavailable)
			}
			if batch.Err != nil {
				return batch.Err
			}
			s.trouble.Store(nil)
			s.apply(batch)
		case <-s.doubts:
			return fmt.Errorf("%w: the watch fell silent", ErrUnavailable)
		}
	}
}

// apply moves memory over one batch, a whole revision at a time.
func (s *Store) apply(batch WatchBatch) {
	changes := make([]change, 0, len(batch.Changes))
	own := s.handover.take(batch.Revision)
	for _, c := range batch.Changes {
		ch, ok := find(own, &c)
		if !ok {
			ch, ok = s.understand(KV{Path: c.Path, Value: c.Value, Revision: c.Revision, Err: c.Err})
		}
		if ok {
			changes = append(changes, ch)
			s.collection(ch.key.Collection).received.Add(1)
		}
	}
	s.applyChanges(changes)
	s.frontier.advance(batch.Revision)
}

// applyChanges applies changes that are sorted by revision. The part of one revision that
// falls into one collection is applied under one lock, so that no reader sees half of it.
func (s *Store) applyChanges(changes []change) {
	for len(changes) > 0 {
		n := 1
		for n < len(changes) && changes[n].revision == changes[0].revision {
			n++
		}
		revision := changes[:n]
		if n > 1 {
			slices.SortStableFunc(revision, func(a, b change) int {
				return strings.Compare(a.key.Collection, b.key.Collection)
			})
		}
		for len(revision) > 0 {
			m := 1
			for m < len(revision) && revision[m].key.Collection == revision[0].key.Collection {
				m++
			}
			s.collection(revision[0].key.Collection).apply(revision[:m])
			revision = revision[m:]
		}
		s.frontier.advance(changes[0].revision)
		changes = changes[n:]
	}
}

// resync replaces a watch whose revision is compacted: it reads everything, and applies the difference
// to memory as events. A deletion whose revision is unknown gets that of the read, by which it has
// certainly happened.
func (s *Store) resync() error {
	var changes []change
	seen := map[string]map[Key]struct{}{}
	revision, err := s.readAll(s.ctx, func(kv KV) {
		key, err := ParseKey(kv.Path)
		if err != nil {
			return
		}
		c := s.collection(key.Collection)
		key.Collection = c.name
		if seen[c.name] == nil {
			seen[c.name] = map[Key]struct{}{}
		}
		seen[c.name][key] = struct{}{}
		old, damaged := c.get(key.Namespace, key.Name), c.damagedAt(key)
		if old != nil && old.Revision == kv.Revision || damaged == kv.Revision {
			return
		}
		ch, ok := s.understand(kv)
		if !ok || ch.object == nil && ch.damage == nil && old == nil && damaged == 0 {
			return
		}
		if old != nil && ch.object != nil && old.UID != ch.object.UID {
			// Another object of the same name: the old one was deleted some time before.
			changes = append(changes, change{key: key, revision: kv.Revision - 1, schema: ch.schema})
		}
		changes = append(changes, ch)
	})
	if err != nil {
		return fmt.Errorf("read everything again: %w", err)
	}
	s.each(func(c *Collection) {
		for _, key := range c.keys() {
			if _, ok := seen[c.name][key]; !ok {
				changes = append(changes, change{key: key, revision: revision, schema: c.schema.Load()})
			}
		}
	})
	slices.SortStableFunc(changes, func(a, b change) int { return int(a.revision - b.revision) })
	s.applyChanges(changes)
	s.frontier.advance(revision)
	return nil
}
