package flowcontrol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	flowv1 "k8s.io/api/flowcontrol/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const (
	patience = time.Minute
	tick     = time.Millisecond
)

func fake(t testing.TB, seats int) (*Dispatcher, *clocktesting.FakeClock) {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	levels, schemas := mandatory(t)
	return New(Options{Seats: seats, QueueWait: 15 * time.Second, Levels: levels, Schemas: schemas, Clock: clock}),
		clock
}

// allOf returns a schema for every request, by user.
func allOf(t testing.TB, level string) *flowv1.FlowSchema {
	return parse(t, `{metadata: {name: all}, spec: {matchingPrecedence: 100, priorityLevelConfiguration: {name: `+level+`}, distinguisherMethod: {type: ByUser},
		rules: [{subjects: [{kind: User, user: {name: "*"}}], resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"]}]}]}}`)
}

// only returns a Dispatcher with one level, which has so many seats and gets all requests.
func only(t testing.TB, seats int, q *flowv1.QueuingConfiguration) (*Dispatcher, *clocktesting.FakeClock, *level) {
	t.Helper()
	d, clock := fake(t, seats)
	levels, schemas := mandatory(t)
	*levels[1].Spec.Limited.NominalConcurrencyShares = 0
	d.Configure(append(levels, limited("all", 100, 0, q)), append(schemas, allOf(t, "all")))
	require.Equal(t, seats, d.levels["all"].limit)
	return d, clock, d.levels["all"]
}

func listBy(user string, seats int) *Request {
	return &Request{User: user, Verb: "list", Resource: "pods", Seats: seats}
}

// begin classifies a request and brings it to its level, without waiting.
func begin(d *Dispatcher, r *Request) (*Request, *Rejection) {
	d.Classify(r)
	r.flow = r.User
	_, err := r.schema.level.start(d.now(), r)
	return r, err
}

func TestStart_RejectsWithoutQueues(t *testing.T) {
	t.Parallel()
	d, _, _ := only(t, 2, nil)
	a, b, c := listBy("a", 1), listBy("b", 1), listBy("c", 1)
	for _, r := range []*Request{a, b, c} {
		d.Classify(r)
	}
	require.NoError(t, d.Start(t.Context(), a))
	require.NoError(t, d.Start(t.Context(), b))
	var rejected *Rejection
	require.ErrorAs(t, d.Start(t.Context(), c), &rejected)
	require.Equal(t, ConcurrencyLimit, rejected.Reason)
	d.Finish(c) // it has no seats
	d.Finish(a)
	d.Finish(a) // it has given it back already
	c = listBy("c", 1)
	d.Classify(c)
	require.NoError(t, d.Start(t.Context(), c))
	e := listBy("e", 1)
	d.Classify(e)
	require.Error(t, d.Start(t.Context(), e))
}

func TestStart_ExemptNeverWaits(t *testing.T) {
	t.Parallel()
	d, _, _ := only(t, 1, nil)
	for range 1000 {
		r := &Request{User: "admin", Groups: []string{"system:masters"}, Verb: "list", Resource: "pods", Seats: 10}
		require.Equal(t, "exempt", d.Classify(r).Schema)
		require.NoError(t, d.Start(t.Context(), r))
	}
}

// A request leaves its queue with an error when it has waited for too long, or when its client has
// gone; the others stay.
func TestStart_WaitingIsBounded(t *testing.T) {
	t.Parallel()
	d, clock, l := only(t, 1, &flowv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 3})
	first := listBy("a", 1)
	d.Classify(first)
	require.NoError(t, d.Start(t.Context(), first))

	waits := func(ctx context.Context, waiting int) (*Request, chan error) {
		r, outcome := listBy("b", 1), make(chan error, 1)
		d.Classify(r)
		go func() { outcome <- d.Start(ctx, r) }()
		require.Eventually(t, func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.waiting == waiting
		}, patience, tick)
		return r, outcome
	}
	ctx, leave := context.WithCancel(t.Context())
	_, cancelled := waits(ctx, 1)
	_, expired := waits(t.Context(), 2)
	deadline, end := context.WithDeadline(t.Context(), time.Unix(1, 0)) // long ago
	defer end()
	late := listBy("b", 1)
	d.Classify(late)
	reason(t, TimedOut, d.Start(deadline, late))

	leave()
	reason(t, Cancelled, <-cancelled)
	require.Eventually(t, clock.HasWaiters, patience, tick)
	clock.Step(10 * time.Second)
	next, served := waits(t.Context(), 2)
	require.Eventually(t, func() bool { return clock.Waiters() == 2 }, patience, tick)
	clock.Step(6 * time.Second)
	reason(t, TimedOut, <-expired)

	_, _ = waits(contextOf(t), 2)
	_, _ = waits(contextOf(t), 3)
	full := listBy("b", 1)
	d.Classify(full)
	reason(t, QueueFull, d.Start(t.Context(), full))

	d.Finish(first)
	require.NoError(t, <-served)
	require.Equal(t, executing, next.state)
	require.Equal(t, [4]uint64{2, 1, 2, 1}, [4]uint64{l.counts.dispatched, l.counts.rejected, l.counts.timedOut,
		l.counts.cancelled})
}

// contextOf returns a context that ends before the test does, and with it all waiting requests.
func contextOf(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx
}

func reason(t *testing.T, want string, err error) {
	t.Helper()
	var rejected *Rejection
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, want, rejected.Reason)
}

// simulation is a server in virtual time: requests end when their time has come.
type simulation struct {
	t     *testing.T
	d     *Dispatcher
	clock *clocktesting.FakeClock
	level *level
	flows []*flow
}

// flow is a user that always has so many requests at the server.
type flow struct {
	user     string
	width    int
	takes    time.Duration
	at       int // once
	requests []*Request
	work     float64 // seat-seconds done
	waited   time.Duration
	done     int
}

func (s *simulation) run(until time.Duration) {
	for s.d.now() < until {
		for _, f := range s.flows {
			for len(f.requests) < f.at {
				r, refused := begin(s.d, listBy(f.user, f.width))
				require.Nil(s.t, refused)
				f.requests = append(f.requests, r)
			}
		}
		next := until
		for _, f := range s.flows {
			for _, r := range f.requests {
				if r.state == executing {
					next = min(next, r.began+f.takes)
				}
			}
		}
		s.clock.Step(next - s.d.now())
		for _, f := range s.flows {
			f.requests = slices.DeleteFunc(f.requests, func(r *Request) bool {
				if r.state != executing || r.began+f.takes > next {
					return false
				}
				s.d.Finish(r)
				f.work += float64(r.width) * f.takes.Seconds()
				f.waited = max(f.waited, r.began-r.arrived)
				f.done++
				return true
			})
		}
	}
}

// distinct returns users that have no queue in common.
func distinct(d *Dispatcher, l *level, n int) []string {
	var users []string
	taken := map[int]bool{}
	for i := 0; len(users) < n; i++ {
		r := listBy(fmt.Sprintf("user-%d", i), 1)
		d.Classify(r)
		r.flow = r.User
		h := deal(r.hash(), len(l.queues), int(l.queuing.HandSize))
		if !slices.ContainsFunc(h.cards[:h.size], func(card int) bool { return taken[card] }) {
			users = append(users, r.User)
			for _, card := range h.cards[:h.size] {
				taken[card] = true
			}
		}
	}
	return users
}

// Flows that always have requests waiting get equal service, however wide or long their requests are
// and however many they send.
func TestFairness_IsBySeatTime(t *testing.T) {
	t.Parallel()
	d, clock, l := only(t, 100, &flowv1.QueuingConfiguration{Queues: 512, HandSize: 1, QueueLengthLimit: 1000})
	users := distinct(d, l, 4)
	flows := []*flow{
		{user: users[0], width: 1, takes: 10 * time.Millisecond, at: 400},
		{user: users[1], width: 1, takes: 500 * time.Millisecond, at: 400},
		{user: users[2], width: 10, takes: 200 * time.Millisecond, at: 60},
		{user: users[3], width: 3, takes: 50 * time.Millisecond, at: 200},
	}
	s := &simulation{t: t, d: d, clock: clock, level: l, flows: flows}
	const long = 60 * time.Second
	s.run(long)
	total := 0.0
	for _, f := range flows {
		total += f.work
	}
	require.Greater(t, total, 0.9*100*long.Seconds(), "seats are not left empty while there is work")
	for _, f := range flows {
		require.InDelta(t, total/4, f.work, 0.05*total, "%+v", flows)
	}
}

// A user with few requests is served next, however many another one sends.
func TestFairness_FewRequestsAreNotStarvedByMany(t *testing.T) {
	t.Parallel()
	d, clock, l := only(t, 10, &flowv1.QueuingConfiguration{Queues: 128, HandSize: 6, QueueLengthLimit: 50})
	users := distinct(d, l, 3)
	elephant := &flow{user: users[0], width: 2, takes: time.Second, at: 250}
	herd := &flow{user: users[1], width: 1, takes: time.Second, at: 250}
	mouse := &flow{user: users[2], width: 1, takes: 10 * time.Millisecond, at: 1}
	s := &simulation{t: t, d: d, clock: clock, level: l, flows: []*flow{elephant, herd, mouse}}
	s.run(100 * time.Second)
	// The others have twelve queues, and at least five of them begin in a second: it waits for three seconds at most.
	require.LessOrEqual(t, mouse.waited, 3*time.Second)
	require.GreaterOrEqual(t, mouse.done, 33)
	require.Greater(t, elephant.waited, 10*time.Second)
}

// Narrow requests do not overtake a wide one forever.
func TestFairness_WideRequestsAreServed(t *testing.T) {
	t.Parallel()
	d, clock, l := only(t, 70, &flowv1.QueuingConfiguration{Queues: 128, HandSize: 1, QueueLengthLimit: 1000})
	users := distinct(d, l, 2)
	wide := &flow{user: users[0], width: 10, takes: 100 * time.Millisecond, at: 20}
	narrow := &flow{user: users[1], width: 1, takes: 100 * time.Millisecond, at: 500}
	s := &simulation{t: t, d: d, clock: clock, level: l, flows: []*flow{wide, narrow}}
	s.run(30 * time.Second)
	require.InDelta(t, 0.5, wide.work/(wide.work+narrow.work), 0.1)
}

// A user with small requests does not wait until wide and long requests of another end, which all began at once and
// still hold most of the seats.
func TestFairness_SmallRequestsPassLongOnes(t *testing.T) {
	t.Parallel()
	d, clock, l := only(t, 100, &flowv1.QueuingConfiguration{Queues: 128, HandSize: 6, QueueLengthLimit: 50})
	users := distinct(d, l, 2)
	long := &flow{user: users[0], width: 9, takes: 2 * time.Second, at: 50}
	small := &flow{user: users[1], width: 1, takes: 10 * time.Millisecond, at: 1}
	s := &simulation{t: t, d: d, clock: clock, level: l, flows: []*flow{long, small}}
	s.run(20 * time.Second)
	require.Zero(t, small.waited)
	require.Equal(t, 2000, small.done)
	require.GreaterOrEqual(t, long.done, 100)
}

// model specifies a level in the simplest way.
type model struct {
	limit     int
	executing map[*Request]bool
	waiting   map[*Request]bool
}

// After random operations in random order, seats are never given out twice nor withheld from the next request,
// requests of one queue begin in the order of arrival, and all counts are right.
func TestLevel_BehavesLikeItsModel(t *testing.T) {
	t.Parallel()
	for round := range 30 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(uint64(round), 7))
			q := flowv1.QueuingConfiguration{Queues: 8, HandSize: 2, QueueLengthLimit: 5}
			d, clock, l := only(t, 20, &q)
			m := &model{limit: 20, executing: map[*Request]bool{}, waiting: map[*Request]bool{}}
			last := map[*queue]time.Duration{}
			for range 2000 {
				clock.Step(time.Duration(1+random.IntN(1e6)) * time.Microsecond)
				switch n := random.IntN(100); {
				case n < 50:
					r, refused := begin(d, listBy(fmt.Sprint("u", random.IntN(6)), 1+random.IntN(4)))
					if refused != nil {
						require.Equal(t, QueueFull, refused.Reason)
						require.Equal(t, arrived, r.state)
						break
					}
					m.waiting[r] = true
				case n < 85:
					if r := pick(random, m.executing); r != nil {
						delete(m.executing, r)
						d.Finish(r)
					}
				case n < 95:
					if r := pick(random, m.waiting); r != nil {
						require.True(t, l.leave(d.now(), r, Cancelled))
						require.Equal(t, finished, r.state)
						delete(m.waiting, r)
					}
				case n < 97:
					m.limit = random.IntN(30)
					l.limitTo(d.now(), m.limit)
				default: // the number of queues changes while requests wait
					q := flowv1.QueuingConfiguration{Queues: int32(2 + random.IntN(20)), HandSize: 2,
						QueueLengthLimit: 5}
					l.set(limited("all", 100, 0, &q).Spec)
				}
				var begun []*Request
				for r := range m.waiting {
					if r.state == executing {
						begun = append(begun, r)
					}
				}
				slices.SortFunc(begun, func(a, b *Request) int { return cmp.Compare(a.arrived, b.arrived) })
				for _, r := range begun {
					require.GreaterOrEqual(t, r.arrived, last[r.queue], "the order in a queue")
					last[r.queue] = r.arrived
					delete(m.waiting, r)
					m.executing[r] = true
				}
				m.check(t, l)
			}
			for len(m.executing)+len(m.waiting) > 0 {
				for r := range m.waiting {
					if r.state == executing {
						delete(m.waiting, r)
						m.executing[r] = true
					}
				}
				r := pick(random, m.executing)
				require.NotNil(t, r, "a request waits while none is served")
				delete(m.executing, r)
				d.Finish(r)
			}
			require.True(t, l.idle())
			require.Equal(t, []int{0, 0, 0, 0}, []int{l.inUse, l.waitingSeats, l.waiting, len(l.backlog)})
		})
	}
}

func (m *model) check(t *testing.T, l *level) {
	t.Helper()
	inUse, waitingSeats := 0, 0
	for r := range m.executing {
		require.Equal(t, executing, r.state)
		inUse += r.width
	}
	queued := map[*queue]int{}
	for r := range m.waiting {
		require.Equal(t, waiting, r.state)
		waitingSeats += r.width
		queued[r.queue]++
	}
	require.Equal(t, []int{inUse, waitingSeats, len(m.executing), len(m.waiting), len(queued)},
		[]int{l.inUse, l.waitingSeats, l.executing.n, l.waiting, len(l.backlog)})
	for q, n := range queued {
		require.Equal(t, n, q.waiting.n)
		require.Same(t, q, l.backlog[q.place])
		require.LessOrEqual(t, l.backlog[0].tag, q.tag, "the lowest tag is first")
	}
	if len(l.backlog) > 0 {
		require.False(t, l.fits(l.backlog[0].waiting.first), "the next waits while there is room")
	}
}

// pick returns a request at random, but the same in every run of the test.
func pick(random *rand.Rand, from map[*Request]bool) *Request {
	if len(from) == 0 {
		return nil
	}
	all := make([]*Request, 0, len(from))
	for r := range from {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Request) int { return cmp.Compare(a.arrived, b.arrived) })
	return all[random.IntN(len(all))]
}

// After its object was deleted, a level serves the requests that it has accepted, and then ends.
func TestConfigure_ALevelEndsWithItsLastRequest(t *testing.T) {
	t.Parallel()
	d, clock, l := only(t, 1, &flowv1.QueuingConfiguration{Queues: 4, HandSize: 1, QueueLengthLimit: 9})
	first, _ := begin(d, listBy("a", 1))
	second, _ := begin(d, listBy("a", 1))
	d.Configure(nil, []*flowv1.FlowSchema{allOf(t, "all")})
	require.Contains(t, d.levels, "all")
	require.True(t, l.quiescing)
	third := listBy("a", 1)
	require.Equal(t, "catch-all", d.Classify(third).Schema, "the schema dangles")
	d.Finish(first)
	require.Equal(t, executing, second.state)
	d.Finish(second)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); d.Run(ctx) }()
	require.Eventually(t, func() bool {
		clock.Step(adjustEvery)
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.levels) == 2
	}, patience, tick)
	stop()
	<-ended
}

// Additional seats go to waiting requests at once.
func TestConfigure_TakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	q := &flowv1.QueuingConfiguration{Queues: 4, HandSize: 1, QueueLengthLimit: 9}
	d, _ := fake(t, 100)
	levels := func(shares int32) []*flowv1.PriorityLevelConfiguration {
		low := limited("low", shares, 0, q)
		low.Spec.Limited.BorrowingLimitPercent = new(int32)
		return []*flowv1.PriorityLevelConfiguration{exemptLevel(), limited("catch-all", 100-shares, 0, nil), low}
	}
	_, schemas := mandatory(t)
	schemas = append(schemas, allOf(t, "low"))
	d.Configure(levels(1), schemas)
	var all []*Request
	count := func(in state) (n int) {
		for _, r := range all {
			if r.state == in {
				n++
			}
		}
		return n
	}
	for range 8 {
		r, refused := begin(d, listBy("a", 1))
		require.Nil(t, refused)
		all = append(all, r)
	}
	require.Equal(t, 1, count(executing))
	d.Configure(levels(3), schemas)
	require.Equal(t, 3, count(executing))
	d.Configure(levels(1), schemas)
	require.Equal(t, 3, count(executing), "executing requests keep their seats")
	for _, r := range all[:3] {
		d.Finish(r)
	}
	require.Equal(t, 1, count(executing))
	// A level that no longer queues still serves the requests in its queues.
	reject := limited("low", 1, 0, nil)
	reject.Spec.Limited.BorrowingLimitPercent = new(int32)
	d.Configure([]*flowv1.PriorityLevelConfiguration{exemptLevel(), limited("catch-all", 99, 0, nil), reject}, schemas)
	_, refused := begin(d, listBy("a", 1))
	require.Equal(t, ConcurrencyLimit, refused.Reason)
	for count(executing) > 0 {
		for _, r := range all {
			d.Finish(r)
		}
	}
	require.Equal(t, 8, count(finished))
}

func TestWidth_IsLimitedByTheLevel(t *testing.T) {
	t.Parallel()
	d, _, l := only(t, 40, nil)
	require.Equal(t, 6, l.widest) // 15 % of 40
	r, _ := begin(d, listBy("a", 10))
	require.Equal(t, 6, r.width)
	r, _ = begin(d, listBy("a", 0))
	require.Equal(t, 1, r.width)
}

func TestDumps_AndMetrics(t *testing.T) {
	t.Parallel()
	d, clock, _ := only(t, 1, &flowv1.QueuingConfiguration{Queues: 2, HandSize: 1, QueueLengthLimit: 9})
	served := listBy("jane\nevil", 2)
	served.Version, served.Namespace = "v1", "default"
	d.Classify(served)
	require.NoError(t, d.Start(t.Context(), served))
	clock.Step(time.Second)
	waits, _ := begin(d, listBy("jane\nevil", 1))

	text := func(dump func(w *strings.Builder) error) []string {
		var b strings.Builder
		require.NoError(t, dump(&b))
		return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	}
	require.Equal(t, []string{
		"PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, WaitingRequests, ExecutingRequests, " +
			"DispatchedRequests, RejectedRequests, TimedoutRequests, CancelledRequests",
		"all,               1,            false,  false,       1,               1,                 1,             " +
			"     0,                0,                0",
		"catch-all,         0,            true,   false,       0,               0,                 0,             " +
			"     0,                0,                0",
		"exempt,            0,            true,   false,       0,               0,                 0,             " +
			"     0,                0,                0",
	}, text(func(w *strings.Builder) error { return d.DumpLevels(w) }))
	requests := text(func(w *strings.Builder) error { return d.DumpRequests(w, true) })
	require.Len(t, requests, 3)
	cells := func(line string) (cells []string) {
		for cell := range strings.SplitSeq(line, ",") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		return cells
	}
	require.Equal(t, []string{"all", "all", "-1", "-1", "jane evil", "2001-09-09T01:46:40Z", "1", "0", "0s",
		"2001-09-09T01:46:40Z",
		"jane evil", "list", "", "default", "", "v1", "pods", ""}, cells(requests[1]))
	require.Equal(t, []string{"all", "all", fmt.Sprint(waits.queue.index), "0", "jane evil", "2001-09-09T01:46:41Z",
		"1", "0", "0s", "-"}, cells(requests[2])[:10])
	require.Equal(t, 1, waits.width)
	queues := text(func(w *strings.Builder) error { return d.DumpQueues(w) })
	require.Len(t, queues, 1+2+2, "two queues, and a line for each level without any")
	require.Equal(t, []string{"catch-all", "<none>", "<none>", "<none>", "<none>", "<none>", "<none>", "<none>",
		"<none>"}, cells(queues[3]))

	clock.Step(time.Second)
	d.Finish(served)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(d))
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			labels := []string{strings.TrimPrefix(f.GetName(), "apiserver_flowcontrol_")}
			for _, label := range m.Label {
				labels = append(labels, label.GetValue())
			}
			values[strings.Join(labels, " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue() +
				m.GetHistogram().GetSampleSum()
		}
	}
	for name, want := range map[string]float64{
		"current_executing_requests all all": 1, "current_executing_seats all all": 1,
		"current_inqueue_requests all all":         0,
		"current_executing_requests exempt exempt": 0, "dispatched_requests_total all all": 1,
		"current_limit_seats all": 1,
		"nominal_limit_seats all": 1, "lower_limit_seats all": 1, "upper_limit_seats all": 1,
		"nominal_limit_seats exempt":                0,
		"request_execution_seconds all all regular": 2, "request_wait_duration_seconds true all all": 0,
		"request_queue_length_after_enqueue all all": 1, "work_estimated_seats all all": 1,
	} {
		got, ok := values[name]
		require.True(t, ok, "%s of %v", name, values)
		require.Equal(t, want, got, name)
	}
}

func TestRejection_IsAnError(t *testing.T) {
	t.Parallel()
	require.True(t, errors.As(fmt.Errorf("x: %w", &Rejection{Reason: QueueFull}), new(*Rejection)))
}
