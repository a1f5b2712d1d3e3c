package storage

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for something that must happen. It is long, because no test
// measures it.
const patience = time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// The backends that tests run on. A test outside of the package sets them, because their packages import this one.
var (
	// StartEtcd starts an etcd for one test. Its database may grow to quota bytes; 0 is etcd's default.
	StartEtcd func(t testing.TB, quota int64) Backend
	// StartMemory starts a backend in memory.
	StartMemory func() Backend
	// Encrypt puts a backend that encrypts pods over another.
	Encrypt func(t testing.TB, below Backend) Backend
)

// onMemory are tests of a Backend's contract. They run by themselves on an embedded etcd, and once more each on a
// backend in memory and on one that encrypts.
var onMemory = map[string]func(*testing.T){
	"commit: contract":         TestCommit_FailsWithTheErrorsOfTheContract,
	"commit: synchronous":      TestCommit_WaitsForMemoryInASynchronousStore,
	"commit: any revision":     TestCommit_WithAnyRevisionIsUnconditional,
	"commit: check":            TestCommit_ChecksAnObjectThatItDoesNotChange,
	"compaction: by the clock": TestUpkeep_CompactsByTheClock,
	"compaction: retention":    TestCompaction_KeepsHistoryForTheRetention,
	"compaction: shared":       TestCompaction_ServersShareTheWorkAndSurviveEachOther,
	"handover":                 TestHandover_MemoryHoldsTheObjectThatTheCommitMade,
	"list: pages":              TestList_PagesInKeyOrderFromMemoryAndFromEtcd,
	"list: pages of an index":  TestList_PagesOfAnIndexValueAreOfOneRevision,
	"list: revisions":          TestList_RevisionMatches,
	"list: scopes":             TestList_Scopes,
	"list: stale token":        TestList_StaleTokenHasATokenToContinueWith,
	"model":                    TestStore_BehavesLikeAMap,
	"past: on every server":    TestPast_ExpiresOnEveryServer,
	"past: pages":              TestPast_PageTokenExpiresAfterFiveMinutes,
	"past: refused":            TestPast_IsRejectedByTheScope,
	"past: retention":          TestPast_ExpiresWithTheRetention,
	"past: same since":         TestSameSince,
	"backfill: bytes":          TestBackfill_IsLimitedLikeTheLog,
	"backfill: compacted":      TestBackfill_FailsIfHistoryIsCompacted,
	"backfill: once":           TestBackfill_ReadsHistoryOnceForAllWatchers,
	"backfill: slow":           TestBackfill_KeepsTheCursorsOfWatchers,
	"resync: broken":           TestResync_ContinuesABrokenWatch,
	"resync: compacted":        TestResync_AppliesTheDifferenceAfterCompaction,
	"store: corrupt":           TestStore_CorruptDocumentsAreLeftOut,
	"silent member":            TestStore_UsesAnotherMemberIfOneIsSilent,
	"store: all verbs":         TestStore_CommitGetListWatch,
	"store: close":             TestClose_FailsConcurrentReads,
	"watch: atomic":            TestWatch_Atomic,
	"watch: bookmarks":         TestWatch_Bookmarkable,
	"watch: ends":              TestWatch_EndsWithItsContextAndWithTheStore,
	"watch: falls off":         TestWatch_ExpiresForSlowWatchersOnly,
	"watch: future":            TestWatch_WaitsForAFutureRevisionAndFails,
	"watch: ordered":           TestWatch_Ordered,
	"watch: reliable":          TestWatch_Reliable,
	"watch: resumable":         TestWatch_Resumable,
	"watch: unique":            TestWatch_Unique,
}

func TestMemory_KeepsTheContract(t *testing.T) {
	t.Parallel()
	for name, test := range onMemory {
		t.Run(name, test)
	}
}

func TestEncryption_KeepsTheContract(t *testing.T) {
	t.Parallel()
	for name, test := range onMemory {
		t.Run(name, test)
	}
}

func startBackend(t testing.TB) Backend {
	t.Helper()
	encrypted := strings.HasPrefix(t.Name(), "TestEncryption_KeepsTheContract/")
	if encrypted || strings.HasPrefix(t.Name(), "TestMemory_KeepsTheContract/") {
		b := StartMemory()
		if encrypted {
			b = Encrypt(t, b)
		}
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	}
	return StartEtcd(t, 0)
}

func openStore(t testing.TB, b Backend, o Options) *Store {
	t.Helper()
	s, err := Open(testContext(t), b, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

const podsName = "core/pods"

var podOptions = CollectionOptions{Fields: []string{"spec.nodeName", "status.phase"}, Index: "spec.nodeName"}

func startPods(t testing.TB, o Options) (*Store, *Collection) {
	t.Helper()
	s := openStore(t, startBackend(t), o)
	return s, s.Collection(podsName, podOptions)
}

func podKey(namespace, name string) Key {
	return Key{Collection: podsName, Namespace: namespace, Name: name}
}

// pod returns a small pod document: labels are "key=value".
func pod(namespace, name, node string, labels ...string) []byte {
	pairs := make([]string, len(labels))
	for i, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		pairs[i] = fmt.Sprintf("%q:%q", k, v)
	}
	return fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q,"uid":"uid-%s","labels":{%s}},"spec":{"nodeName":%q}}`,
		name, namespace, name, strings.Join(pairs, ","), node)
}

func create(t testing.TB, s *Store, key Key, document []byte) *Object {
	t.Helper()
	result, err := s.Commit(testContext(t), Write{Op: Create, Key: key, Value: document})
	require.NoError(t, err)
	return result.Objects[0]
}

func update(t testing.TB, s *Store, old *Object, document []byte) *Object {
	t.Helper()
	result, err := s.Commit(testContext(t), Write{Op: Update, Key: old.Key, Value: document, Expect: old.Revision})
	require.NoError(t, err)
	return result.Objects[0]
}

func remove(t testing.TB, s *Store, old *Object) *Object {
	t.Helper()
	result, err := s.Commit(testContext(t), Write{Op: Delete, Key: old.Key, Expect: old.Revision})
	require.NoError(t, err)
	return result.Objects[0]
}

func watch(t testing.TB, c *Collection, r WatchRequest) *Watcher {
	t.Helper()
	w, err := c.Watch(testContext(t), r)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return w
}

// take reads exactly n events.
func take(t testing.TB, w *Watcher, n int) []Event {
	t.Helper()
	var events []Event
	for len(events) < n {
		batch, err := w.Next(testContext(t))
		require.NoError(t, err)
		events = append(events, batch...)
	}
	require.Len(t, events, n)
	return events
}

// brief formats an event for tests: "ADDED default/web 12".
func brief(e Event) string {
	if e.Object == nil {
		return fmt.Sprintf("%s %d", e.Type, e.Revision)
	}
	return fmt.Sprintf("%s %s/%s %d", e.Type, e.Object.Key.Namespace, e.Object.Key.Name, e.Revision)
}

func briefs(events []Event) []string {
	lines := make([]string, len(events))
	for i, e := range events {
		lines[i] = brief(e)
	}
	return lines
}

func names(objects []*Object) []string {
	list := make([]string, len(objects))
	for i, o := range objects {
		list[i] = o.Key.Namespace + "/" + o.Key.Name
	}
	return list
}
