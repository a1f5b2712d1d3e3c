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
// Writes go to etcd and come back through the one watch, like the writes of other stores; the writer does not change
// memory. So any number of stores, in any number of processes, may share one etcd, and memory holds only changes that
// etcd has delivered, in etcd's order.
type Store struct {
	backend  *meter
	options  Options
	base     int64 // the revision of the first snapshot: where every log begins
	frontier frontier
	query    revisionQuery
	handover handover
	// lastErr is the reason why memory is not in step with etcd, nil while it is. Only follow stores it.
	lastErr   atomic.Pointer[error]
	suspect   chan struct{} // signals follow that its watch may have fallen silent; holds one token
	compactor compactor
	noSpace   chan struct{} // wakes upkeep when a write failed for lack of space; holds one token
	madeRoom  time.Time     // when upkeep last made room; only upkeep uses it
	// followed is closed, once, when etcd has opened the watch for the first time, or has failed to.
	followed     chan struct{}
	followedOnce sync.Once
	backfilling  chan struct{} // the lock of backfill, as a channel: holds a token while history is read
	history      historyWeight // the owner of that token uses it

	ctx     context.Context // ends with the store
	stop    context.CancelFunc
	running sync.WaitGroup // follow and upkeep

	// mu guards collections. With it, a collection's lock is taken for reading at most.
	mu          sync.RWMutex
	collections map[string]*Collection
}

// Options tune a Store. The server uses the zero value.
type Options struct {
	// LogEvents and LogBytes bound each collection's event log. Zero: 16384 and 32 MiB.
	LogEvents int
	LogBytes  int64
	// BackfillBytes limits the size of etcd's history that may be read after a start, so that watches can go on from
	// before it; 0 is no limit. Reading it takes memory, in etcd and here, that depends on the clients' writes.
	BackfillBytes int64
	// HistoryRetention is how far back exact reads can go, and Collection.Watch where the log does: this long, and up
	// to one CompactionInterval more. Zero: 1 h.
	HistoryRetention time.Duration
	// CompactionInterval is how often older history is compacted, and how long a continue token is
	// valid; no history is kept for a shorter time. Zero: 5 m; negative: history is never compacted,
	// and tokens never expire.
	CompactionInterval time.Duration
	// DefragmentInterval, when positive, is how often etcd is defragmented if that frees a quarter of
	// its file or more. It is for an etcd that is not shared, because etcd serves no requests meanwhile.
	DefragmentInterval time.Duration
	// Synchronous makes Commit wait until memory has its changes. Without it, a writer's next write may be made from an
	// older state, meet a conflict, and be repeated. A test that counts the effects of a write needs exactly one.
	Synchronous bool
	// Clock measures these intervals. Nil: the real clock.
	Clock clock.WithTicker
	// Log receives the log lines of the store. Nil: slog.Default.
	Log *slog.Logger
}

const (
	defaultLogEvents = 16384
	defaultLogBytes  = 32 << 20

	// DefaultHistoryRetention lets a controller that was away for an hour go on, at the cost of a larger etcd.
	DefaultHistoryRetention = time.Hour
	// DefaultCompactionInterval is kube-apiserver's --etcd-compaction-interval.
	DefaultCompactionInterval = 5 * time.Minute

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
		o.HistoryRetention = DefaultHistoryRetention
	}
	if o.CompactionInterval == 0 {
		o.CompactionInterval = DefaultCompactionInterval
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
		suspect:  make(chan struct{}, 1),
		noSpace:  make(chan struct{}, 1),
		followed: make(chan struct{}), backfilling: make(chan struct{}, 1),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.query.ask = s.askRevision
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
	s.backfilling <- struct{}{} // waits until history is no longer read
	<-s.backfilling
	s.query.close()
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
		s.options.Log.Warn("cannot reach etcd yet", "err", err)
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
	if lastErr := s.lastErr.Load(); lastErr != nil {
		return fmt.Errorf("storage: not in step with etcd: %w", *lastErr)
	}
	// Status comes first, because an etcd with corrupt data answers no other request.
	status, err := s.backend.Status(ctx)
	if err == nil {
		err = status.unhealthy()
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
// not older than the result's. When it has returned, with or without an error, the caller may reuse the writes' values.
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
		s.signalNoSpace(err)
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
		return errors.New("no writes")
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
	// Index, if not empty, is one of Fields: the one that has an index for lists and watches by equality
	// (pods: "spec.nodeName").
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

// Collections returns the names of the collections that hold at least one object, opened or not, sorted.
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
