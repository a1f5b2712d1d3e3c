package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/etcd"
	"github.com/coxswain-dev/coxswain/storage/memory"
)

// pair is a backend in memory and an etcd. The test performs every operation on both.
type pair struct {
	t            *testing.T
	ctx          context.Context
	memory, etcd storage.Backend
	random       *rand.Rand
	watches      []watchPair
}

type watchPair struct {
	request      storage.FollowRequest
	memory, etcd *log
}

// log has the changes that a watch delivered.
type log struct {
	batches <-chan storage.WatchBatch
	changes []storage.Change
	reached int64
	err     error
}

// read reads a watch until it has reached a revision or ended.
func (l *log) read(t *testing.T, revision int64) {
	t.Helper()
	for l.err == nil && l.reached < revision {
		select {
		case batch, open := <-l.batches:
			if !open {
				l.err = errors.New("closed")
			} else if l.err = batch.Err; batch.Err == nil {
				requireWhole(t, l, batch)
				l.changes = append(l.changes, batch.Changes...)
				l.reached = max(l.reached, batch.Revision)
			}
		case <-time.After(time.Minute):
			require.FailNow(t, "the watch makes no progress", "it is at %d of %d", l.reached, revision)
		}
	}
}

// requireWhole checks that no revision is split between batches.
func requireWhole(t *testing.T, l *log, batch storage.WatchBatch) {
	t.Helper()
	if n := len(l.changes); n > 0 && len(batch.Changes) > 0 {
		require.Greater(t, batch.Changes[0].Revision, l.changes[n-1].Revision)
	}
	if n := len(batch.Changes); n > 0 {
		require.Equal(t, batch.Changes[n-1].Revision, batch.Revision)
	}
}

// kinds are the errors that users of a Backend distinguish.
var kinds = []error{storage.ErrExpired, storage.ErrFuture, storage.ErrTooLarge, storage.ErrUnavailable,
	storage.ErrNoSpace, storage.ErrUnknownOutcome}

func kind(err error) error {
	for _, k := range kinds {
		if errors.Is(err, k) {
			return k
		}
	}
	if err != nil {
		return errors.New("refused")
	}
	return nil
}

// both performs an operation on both backends and compares the results.
func both[T any](p *pair, operation string, do func(storage.Backend) (T, error)) T {
	p.t.Helper()
	got, gotErr := do(p.memory)
	want, wantErr := do(p.etcd)
	require.Equal(p.t, kind(wantErr), kind(gotErr), "%s: etcd: %v, memory: %v", operation, wantErr, gotErr)
	require.Equal(p.t, want, got, operation)
	return want
}

func (p *pair) key() storage.Key {
	return storage.Key{Collection: []string{"a/b", "a/bb", "c/d"}[p.random.IntN(3)],
		Namespace: []string{"", "n", "n-1"}[p.random.IntN(3)], Name: fmt.Sprint("o", p.random.IntN(6))}
}

func (p *pair) now() int64 {
	revision, err := p.etcd.Revision(p.ctx)
	require.NoError(p.t, err)
	return revision
}

// writes returns one to four random writes. Their compares often fail, and sometimes two have the same key.
func (p *pair) writes() []storage.Write {
	writes := make([]storage.Write, 1+p.random.IntN(4))
	for i := range writes {
		w := storage.Write{Op: storage.Op(p.random.IntN(4)), Key: p.key()}
		if w.Op != storage.Create {
			w.Expect = storage.AnyRevision
			if found, err := p.etcd.Range(p.ctx, storage.RangeRequest{Prefix: w.Key.String(), Limit: 1}); w.Op ==
				storage.Check || p.random.IntN(3) == 0 {
				require.NoError(p.t, err)
				if w.Expect = 1 + p.random.Int64N(p.now()); len(found.KVs) > 0 && p.random.IntN(4) > 0 {
					w.Expect = found.KVs[0].Revision
				}
			}
		}
		if w.Op == storage.Create || w.Op == storage.Update {
			w.Value = []byte(fmt.Sprint("v", p.random.IntN(1000)))
			if p.random.IntN(10) == 0 {
				w.TTL = time.Hour
			}
		}
		writes[i] = w
	}
	return writes
}

func (p *pair) commit() {
	writes := p.writes()
	both(p, fmt.Sprintf("commit %+v", writes), func(b storage.Backend) (*storage.Outcome, error) {
		return b.Commit(p.ctx, writes)
	})
}

func (p *pair) read() {
	r := storage.RangeRequest{Prefix: []string{"", "a/b/", "a/b", "c/d/n/", "z"}[p.random.IntN(5)],
		Limit: p.random.Int64N(6)}
	if p.random.IntN(2) == 0 {
		r.Revision = p.random.Int64N(p.now() + 3)
	}
	if p.random.IntN(3) == 0 {
		r.Start = p.key().String() + "\x00"
	}
	both(p, fmt.Sprintf("range %+v", r), func(b storage.Backend) (*storage.RangeResult, error) {
		result, err := b.Range(p.ctx, r)
		if result != nil && len(result.KVs) == 0 {
			result.KVs = nil
		}
		return result, err
	})
}

func (p *pair) watch() {
	r := storage.FollowRequest{From: 1 + p.random.Int64N(p.now()+1), Prefix: []string{"", "a/b/", "c/"}[p.random.IntN(3)]}
	p.watches = append(p.watches, watchPair{r, &log{batches: p.memory.Watch(p.ctx, r)},
		&log{batches: p.etcd.Watch(p.ctx, r)}})
}

func (p *pair) compact() {
	p.settle() // a watch that is behind a compaction may or may not deliver the changes before it
	revision := 1 + p.random.Int64N(p.now()+1)
	both(p, fmt.Sprint("compact ", revision), func(b storage.Backend) (any, error) { return nil, b.Compact(p.ctx, revision) })
}

func (p *pair) note() {
	note := both(p, "note", func(b storage.Backend) (*storage.Note, error) { return b.Note(p.ctx) })
	if note.Revision > 0 && p.random.IntN(3) == 0 {
		note = &storage.Note{Revision: note.Revision - 1}
	}
	value := []byte(fmt.Sprint(p.random.Int()))
	both(p, "replace the note", func(b storage.Backend) (bool, error) { return b.ReplaceNote(p.ctx, note, value) })
}

// settle waits until all watches have delivered all changes, compares the watches, and removes the ended ones.
func (p *pair) settle() {
	p.t.Helper()
	now := p.now()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			_ = p.memory.RequestProgress(p.ctx)
			_ = p.etcd.RequestProgress(p.ctx)
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond): // etcd ignores progress requests while a watch is behind
			}
		}
	}()
	open := p.watches[:0]
	for _, w := range p.watches {
		w.memory.read(p.t, now)
		w.etcd.read(p.t, now)
		require.Equal(p.t, kind(w.etcd.err), kind(w.memory.err), "watch %+v", w.request)
		require.Equal(p.t, w.etcd.changes, w.memory.changes, "watch %+v", w.request)
		if w.etcd.err == nil {
			open = append(open, w)
		}
	}
	p.watches = open
}

// TestMemory_BehavesAsEtcd performs random operations and compares the results.
func TestMemory_BehavesAsEtcd(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			original, err := etcd.StartEmbedded(ctx, etcd.EmbeddedOptions{Dir: t.TempDir(), Unsafe: true})
			require.NoError(t, err)
			defer original.Close()
			inMemory := memory.New(memory.Options{})
			defer inMemory.Close()
			p := &pair{t: t, ctx: ctx, memory: inMemory, etcd: original, random: rand.New(rand.NewPCG(seed, 1))}
			for range 1500 {
				switch n := p.random.IntN(100); {
				case n < 60:
					p.commit()
				case n < 92:
					p.read()
				case n < 95:
					p.watch()
				case n < 96:
					p.compact()
				default:
					p.note()
				}
			}
			p.settle()
		})
	}
}

func TestMemory_RejectsTheSameTransactionsAsEtcd(t *testing.T) {
	t.Parallel()
	original, err := etcd.StartEmbedded(t.Context(), etcd.EmbeddedOptions{Dir: t.TempDir(), Unsafe: true})
	require.NoError(t, err)
	defer original.Close()
	inMemory := memory.New(memory.Options{})
	defer inMemory.Close()
	p := &pair{t: t, ctx: t.Context(), memory: inMemory, etcd: original}
	put := func(name string, size int) storage.Write {
		return storage.Write{Key: storage.Key{Collection: "a/b", Name: name}, Value: make([]byte, size)}
	}
	var many []storage.Write
	for i := range 129 {
		many = append(many, put(fmt.Sprint(i), 1))
	}
	for name, writes := range map[string][]storage.Write{
		"too many":    many,
		"just enough": many[:128],
		"too large":   {put("large", 2<<20)},
		"twice":       {put("x", 1), put("x", 1)},
		"put and deleted": {put("x", 1), {Op: storage.Delete, Key: storage.Key{Collection: "a/b", Name: "x"},
			Expect: storage.AnyRevision}},
	} {
		both(p, name, func(b storage.Backend) (*storage.Outcome, error) { return b.Commit(t.Context(), writes) })
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	both(p, "an ended context", func(b storage.Backend) (*storage.Outcome, error) {
		return b.Commit(ended, []storage.Write{put("y", 1)})
	})
}
