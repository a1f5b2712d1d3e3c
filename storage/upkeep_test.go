package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// step moves the clock to the next round of upkeep, which must be waiting for it.
func step(t testing.TB, c *clocktesting.FakeClock, d time.Duration) {
	t.Helper()
	require.Eventually(t, c.HasWaiters, patience, time.Millisecond)
	c.Step(d)
}

// round runs one round of compaction by a clock that stands at the given time.
func round(t testing.TB, s *Store, at time.Time) {
	t.Helper()
	s.compactor.clock = clocktesting.NewFakePassiveClock(at)
	require.NoError(t, s.compactor.round(testContext(t)))
}

// readableAt reports whether the past can still be read.
func readableAt(t testing.TB, b Backend, revision int64) bool {
	t.Helper()
	_, err := b.Range(testContext(t), RangeRequest{Revision: revision, Limit: 1})
	if err != nil {
		require.ErrorIs(t, err, ErrExpired)
	}
	return err == nil
}

// byHand opens a store without periodic compaction: tests call round.
var byHand = Options{CompactionInterval: -1}

func openByHand(t testing.TB, b Backend, retention time.Duration) *Store {
	t.Helper()
	s := openStore(t, b, byHand)
	s.compactor.interval, s.compactor.retention = 5*time.Minute, retention
	return s
}

func TestCompaction_KeepsHistoryForTheRetention(t *testing.T) {
	t.Parallel()
	b := startBackend(t)
	s := openByHand(t, b, time.Hour)
	o := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	var revisions []int64 // the current revision at each round
	for i := range 20 {
		o = update(t, s, o, pod("default", "a", fmt.Sprint(i)))
		revisions = append(revisions, o.Revision)
		round(t, s, noon.Add(time.Duration(i)*5*time.Minute))
		for j, revision := range revisions {
			want := i-j <= 12
			require.Equal(t, want, readableAt(t, b, revision), "in round %d, the past of round %d", i, j)
		}
	}
	_, err := s.Revision(testContext(t))
	require.NoError(t, err)
	require.Equal(t, []string{podsName}, s.Collections())
	require.Len(t, s.compactor.milestones, 13, "milestones do not pile up")
}

func TestCompact_IgnoresTheRetention(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	first := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	second := update(t, s, first, pod("default", "a", "n"))
	open := watch(t, pods, WatchRequest{From: first.Revision})
	require.NoError(t, s.Compact(testContext(t), second.Revision))
	require.NoError(t, s.Compact(testContext(t), first.Revision), "that is compacted already")

	_, err := pods.Watch(testContext(t), WatchRequest{From: first.Revision})
	require.ErrorIs(t, err, ErrExpired, "although memory has it")
	_, err = pods.Get(testContext(t), "default", "a", At{Revision: first.Revision, Exact: true})
	require.ErrorIs(t, err, ErrExpired)
	require.Equal(t, second.Revision, take(t, open, 1)[0].Revision, "a watch that is open goes on")
	watch(t, pods, WatchRequest{From: second.Revision})
}

func TestCompaction_ServersShareTheWorkAndSurviveEachOther(t *testing.T) {
	t.Parallel()
	b := startBackend(t)
	ctx := testContext(t)
	first := openByHand(t, b, time.Hour)
	o := create(t, first, podKey("default", "a"), pod("default", "a", ""))
	round(t, first, noon)
	noted, err := b.Note(ctx)
	require.NoError(t, err)

	second := openByHand(t, b, time.Hour)
	round(t, second, noon.Add(2*time.Minute))
	again, err := b.Note(ctx)
	require.NoError(t, err)
	require.Equal(t, noted.Revision, again.Revision, "the interval's work is done")

	o = update(t, second, o, pod("default", "a", "n1"))
	later := openByHand(t, b, time.Hour) // as after a restart
	round(t, later, noon.Add(time.Hour-time.Second))
	require.True(t, readableAt(t, b, noted.Revision-2))
	round(t, later, noon.Add(time.Hour+5*time.Minute))
	require.False(t, readableAt(t, b, noted.Revision-2), "the other servers know the first one's milestone")
	require.True(t, readableAt(t, b, o.Revision))
}

// racingBackend lets another server replace the note between our reading and writing it.
type racingBackend struct {
	Backend
	rival *Store
	at    time.Time
	t     testing.TB
}

func (r *racingBackend) Note(ctx context.Context) (*Note, error) {
	note, err := r.Backend.Note(ctx)
	round(r.t, r.rival, r.at)
	return note, err
}

func TestCompaction_OneServerWinsTheRace(t *testing.T) {
	t.Parallel()
	b := startBackend(t)
	rival := openByHand(t, b, time.Hour)
	s := openByHand(t, b, time.Hour)
	s.compactor.backend = &racingBackend{b, rival, noon, t}
	round(t, s, noon)
	note, err := b.Note(testContext(t))
	require.NoError(t, err)
	require.Equal(t, int64(2), note.Revision, "one of the two wrote, once")
}

func TestCompaction_DropsImpossibleMilestones(t *testing.T) {
	t.Parallel()
	b := startBackend(t)
	s := openByHand(t, b, time.Hour)
	for _, nonsense := range []string{
		`{`, `[{"time":"2020-01-01T00:00:00Z","revision":99999999}]`, `[{"time":"2099-01-01T00:00:00Z","revision":1}]`,
		`[{}]`,
	} {
		note, err := b.Note(testContext(t))
		require.NoError(t, err)
		ok, err := b.ReplaceNote(testContext(t), note, []byte(nonsense))
		require.NoError(t, err)
		require.True(t, ok)
		s.compactor.milestones = nil
		round(t, s, noon)
		require.Len(t, s.compactor.milestones, 1, nonsense)
		require.Equal(t, noon, s.compactor.milestones[0].Time)
	}
	require.True(t, readableAt(t, b, 2))
}

func TestUpkeep_CompactsByTheClock(t *testing.T) {
	t.Parallel()
	b := startBackend(t)
	fake := clocktesting.NewFakeClock(noon)
	s := openStore(t, b, Options{Clock: fake, HistoryRetention: 9 * time.Minute, CompactionInterval: 5 * time.Minute})
	o := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	o = update(t, s, o, pod("default", "a", "n1"))
	var noted int64
	for range 3 {
		step(t, fake, 5*time.Minute)
		require.Eventually(t, func() bool {
			note, err := b.Note(testContext(t))
			require.NoError(t, err)
			moved := note.Revision > noted
			noted = max(noted, note.Revision)
			return moved
		}, patience, time.Millisecond)
	}
	require.Eventually(t, func() bool { return !readableAt(t, b, o.Revision-1) }, patience, time.Millisecond)
}

// fill creates objects of half a megabyte until etcd has no room for more.
func fill(t testing.TB, s *Store) (objects []*Object) {
	t.Helper()
	big := fmt.Appendf(nil, `{"metadata":{},"data":%q}`, strings.Repeat("x", 500<<10))
	for i := range 100 {
		result, err := s.Commit(testContext(t),
			Write{Op: Create, Key: podKey("default", fmt.Sprintf("p%d", i)), Value: big})
		if errors.Is(err, ErrNoSpace) {
			return objects
		}
		require.NoError(t, err)
		objects = append(objects, result.Objects[0])
	}
	require.FailNow(t, "the quota was never reached")
	return nil
}

func metric(t testing.TB, s *Store, name, label string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(s.Collector()))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			var values []string
			for _, l := range m.Label {
				values = append(values, l.GetValue())
			}
			if strings.Join(values, "/") == label {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	require.FailNow(t, "no such metric", "%s %s", name, label)
	return 0
}

// An embedded etcd cannot be reached with etcdctl, so the store must clear the alarm when there is room again.
func TestUpkeep_MakesRoomInAFullEmbeddedEtcd(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakeClock(noon)
	s := openStore(t, StartEtcd(t, 4<<20), Options{Clock: fake})
	objects := fill(t, s)
	require.Eventually(t, func() bool {
		return metric(t, s, "etcd_server_alarms", "NOSPACE") == 1
	}, patience, time.Millisecond)
	require.NoError(t, s.Ready(testContext(t)), "it can be read")
	require.Zero(t, metric(t, s, "etcd_server_alarms", "CORRUPT"))
	require.Equal(t, 4.0*(1<<20), metric(t, s, "etcd_server_quota_backend_bytes", ""))

	for _, o := range objects[1:] {
		remove(t, s, o) // deletions are still accepted
	}
	small := Write{Op: Create, Key: podKey("default", "after"), Value: []byte(`{"metadata":{}}`)}
	require.Eventually(t, func() bool {
		fake.Step(roomEvery)
		_, err := s.Commit(testContext(t), small)
		if err != nil {
			require.ErrorIs(t, err, ErrNoSpace)
		}
		return err == nil
	}, patience, time.Millisecond)
	require.NoError(t, s.Ready(testContext(t)))
	require.Zero(t, metric(t, s, "etcd_server_alarms", "NOSPACE"))
}

// reporting is a backend that alters its status.
type reporting struct {
	Backend
	alter func(*Status)
}

func (r reporting) Status(ctx context.Context) (*Status, error) {
	status, err := r.Backend.Status(ctx)
	if err == nil {
		r.alter(status)
	}
	return status, err
}

// external makes an etcd look like one that runs in a process of its own.
func external(b Backend) Backend { return reporting{b, func(s *Status) { s.Embedded = false }} }

// An external etcd is maintained by its operators: compaction, defragmentation, disarming.
func TestUpkeep_LeavesTheAlarmsOfAnExternalEtcdToItsOperators(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := external(StartEtcd(t, 4<<20))
	fake := clocktesting.NewFakeClock(noon)
	s := openStore(t, b, Options{Clock: fake})
	objects := fill(t, s)
	require.NoError(t, s.Ready(ctx), "it can be read")
	for _, o := range objects[1:] {
		remove(t, s, o)
	}
	s.makeRoomIfNeeded()
	status, err := b.Status(ctx)
	require.NoError(t, err)
	require.True(t, status.Has(NoSpace))

	require.NoError(t, b.Compact(ctx, status.Revision))
	require.NoError(t, b.Defragment(ctx))
	require.NoError(t, b.Disarm(ctx, NoSpace))
	require.NoError(t, s.Ready(ctx))
	create(t, s, podKey("default", "after"), []byte(`{"metadata":{}}`))
}

func TestUpkeep_CompactionGoesOnWhenTheNoteCannotBeWritten(t *testing.T) {
	t.Parallel()
	b := external(StartEtcd(t, 4<<20))
	s := openByHand(t, b, time.Hour)
	round(t, s, noon)
	objects := fill(t, s)
	deleted := remove(t, s, objects[0])
	round(t, s, noon.Add(5*time.Minute))
	round(t, s, noon.Add(65*time.Minute))
	require.False(t, readableAt(t, b, deleted.Revision-1))
	require.True(t, readableAt(t, b, deleted.Revision))
}

func TestReady_ReportsACorruptEtcd(t *testing.T) {
	t.Parallel()
	b := reporting{startBackend(t), func(s *Status) { s.Alarms = append(s.Alarms, Corrupt) }}
	s := openStore(t, b, Options{})
	err := s.Ready(testContext(t))
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, "CORRUPT")
	require.Equal(t, 1.0, metric(t, s, "etcd_server_alarms", "CORRUPT"))
}

func TestUpkeep_DefragmentsOnSchedule(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	fake := clocktesting.NewFakeClock(noon)
	s := openStore(t, b, Options{Clock: fake, CompactionInterval: -1, DefragmentInterval: time.Minute})
	big := fmt.Appendf(nil, `{"metadata":{},"data":%q}`, strings.Repeat("x", 500<<10))
	o := create(t, s, podKey("default", "a"), big)
	for range 8 {
		o = update(t, s, o, big)
	}
	require.NoError(t, b.Compact(ctx, o.Revision))
	size := func() int64 {
		status, err := b.Status(ctx)
		require.NoError(t, err)
		return status.Size
	}
	require.Greater(t, size(), int64(4<<20))
	require.Eventually(t, func() bool {
		o = update(t, s, o, []byte(`{}`)) // etcd counts the free pages when it writes
		step(t, fake, time.Minute)
		return size() < 2<<20
	}, patience, 10*time.Millisecond)
	got, err := s.Collection(podsName, podOptions).Get(ctx, "default", "a", At{})
	require.NoError(t, err)
	require.Equal(t, o.Revision, got.Revision)
	require.Positive(t, metric(t, s, "etcd_request_duration_seconds", "/defragment/"))
}

func TestCollector_CountsRequestsAndEvents(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openStore(t, startBackend(t), Options{Clock: clock.RealClock{}})
	key := Key{Collection: "apps/deployments", Namespace: "default", Name: "web"}
	create(t, s, key, []byte(`{"metadata":{}}`))
	_, err := s.Commit(ctx, Write{Op: Create, Key: key, Value: []byte(`{}`)})
	require.ErrorIs(t, err, ErrExists)
	ended, cancel := context.WithTimeout(ctx, 0)
	defer cancel()
	_, err = s.Commit(ended, Write{Op: Create, Key: key, Value: []byte(`{}`)})
	require.ErrorIs(t, err, ErrUnavailable)
	_, err = s.Revision(ctx)
	require.NoError(t, err)
	require.Equal(t, 3.0, metric(t, s, "etcd_requests_total", "apps/create/deployments"))
	require.Equal(t, 1.0, metric(t, s, "etcd_request_errors_total", "apps/create/deployments"))
	require.Equal(t, 3.0, metric(t, s, "etcd_request_duration_seconds", "apps/create/deployments"))
	require.Equal(t, 1.0, metric(t, s, "apiserver_storage_events_received_total", "apps/deployments"))
	require.Positive(t, metric(t, s, "apiserver_storage_size_bytes", "etcd-0"))
	require.Positive(t, metric(t, s, "etcd_mvcc_db_total_size_in_use_in_bytes", ""))
}

func TestCollector_HasNoLabelsOfInternalCollections(t *testing.T) {
	t.Parallel()
	s := openStore(t, startBackend(t), Options{Clock: clock.RealClock{}})
	create(t, s, Key{Collection: "claims/nodeports", Name: "30000"}, []byte(`{}`))
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(s.Collector()))
	require.Equal(t, 1.0, seriestest.Value(t, registry, "etcd_requests_total", "operation", "create", "group", ""))
	for _, name := range []string{"etcd_requests_total", "apiserver_storage_events_received_total"} {
		require.Zero(t, seriestest.Value(t, registry, name, "group", "claims"), name)
	}
}
