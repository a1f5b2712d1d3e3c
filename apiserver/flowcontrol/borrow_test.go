package flowcontrol

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	flowv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/utils/ptr"
)

// The levels of https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#defaults with the
// default of 600 seats.
func suggested() []*flowv1.PriorityLevelConfiguration {
	q := &flowv1.QueuingConfiguration{Queues: 128, HandSize: 6, QueueLengthLimit: 50}
	return []*flowv1.PriorityLevelConfiguration{
		exemptLevel(), limited("catch-all", 5, 0, nil), limited("system", 30, 33, q), limited("node-high", 40, 25, q),
		limited("leader-election", 10, 0, q), limited("workload-high", 40, 50, q), limited("workload-low", 100, 90, q),
		limited("global-default", 20, 50, q),
	}
}

func TestShare_DividesByConcurrencyShares(t *testing.T) {
	t.Parallel()
	d, _ := fake(t, 600)
	d.Configure(suggested(), nil)
	got := map[string][3]int{}
	for name, l := range d.levels {
		got[name] = [3]int{l.nominal, l.lower, l.upper}
	}
	require.Equal(t, map[string][3]int{ // ceil(600 * shares / 245), less the lendable part; borrowing is not limited
		"exempt": {0, 0, 600}, "catch-all": {13, 13, 600}, "system": {74, 50, 600}, "node-high": {98, 73, 600},
		"leader-election": {25, 25, 600}, "workload-high": {98, 49, 600}, "workload-low": {245, 24, 600},
		"global-default": {49, 24, 600},
	}, got)

	bounded := limited("bounded", 10, 0, nil)
	bounded.Spec.Limited.BorrowingLimitPercent = ptr.To[int32](50)
	d.Configure([]*flowv1.PriorityLevelConfiguration{exemptLevel(), limited("catch-all", 5, 0, nil), bounded,
		limited("rest", 5, 0, nil)}, nil)
	require.Equal(t, []int{300, 300, 450}, []int{d.levels["bounded"].nominal, d.levels["bounded"].lower,
		d.levels["bounded"].upper})
	require.NotContains(t, d.levels, "system", "it was idle")
}

// A level with more demand gets the seats that others lend within ten seconds, and returns them.
func TestAdjust_FollowsDemand(t *testing.T) {
	t.Parallel()
	d, clock := fake(t, 600)
	d.Configure(suggested(), nil)
	low, sum := d.levels["workload-low"], 0
	for _, l := range d.levels {
		sum += l.nominal
	}
	wish := func(l *level, seats int) {
		l.mu.Lock()
		l.demand.note(d.now(), seats)
		l.mu.Unlock()
	}
	period := func() {
		clock.Step(adjustEvery)
		d.mu.Lock()
		d.adjust()
		d.mu.Unlock()
		total := 0
		for _, l := range d.levels {
			require.GreaterOrEqual(t, l.limit, l.lower, l.name)
			require.LessOrEqual(t, l.limit, max(l.upper, l.lower), l.name)
			total += l.limit
		}
		require.InDelta(t, sum, total, float64(len(d.levels)))
	}
	wish(low, 400)
	period()
	borrowed := low.limit
	require.Greater(t, borrowed, low.nominal)
	require.Equal(t, d.levels["leader-election"].nominal, d.levels["leader-election"].limit, "it lends nothing")

	// A level that needs its own seats again has them after the next adjustment.
	high := d.levels["workload-high"]
	wish(high, 200)
	period()
	require.GreaterOrEqual(t, high.limit, high.nominal)
	require.Less(t, low.limit, borrowed)

	// Exempt requests take as many seats as they need, of the others' surplus at first, and then down
	// to the seats that they do not lend.
	exempt := d.levels["exempt"]
	wish(exempt, 300)
	period()
	require.Equal(t, 300, exempt.limit)
	wish(exempt, 1000)
	clock.Step(adjustEvery)
	d.mu.Lock()
	d.adjust()
	d.mu.Unlock()
	for _, l := range d.levels {
		if !l.exempt {
			require.Equal(t, l.lower, l.limit, l.name)
		}
	}
}

// Demand is weighted by time: 4 seats for 1 s and 1 for 3 s.
func TestDemand_IsWeightedByTime(t *testing.T) {
	t.Parallel()
	var d demand
	d.note(0, 4)
	d.note(time.Second, 1)
	mean, deviation, high := d.reset(4 * time.Second)
	require.InDelta(t, 7.0/4, mean, 1e-9)
	require.InDelta(t, 1.299038, deviation, 1e-6) // of 4, 1, 1, 1
	require.Equal(t, 4.0, high)
	mean, deviation, high = d.reset(5 * time.Second)
	require.Equal(t, []float64{1, 0, 1}, []float64{mean, deviation, high})
}

// For any claims, the result of divide follows its rule.
func TestDivide_IsProportionalWithinBounds(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		claims := make([]claim, 1+random.IntN(8))
		least, upper := 0.0, 0.0
		for i := range claims {
			c := &claims[i]
			c.least = float64(random.IntN(100))
			c.max = c.least + float64(random.IntN(200))
			c.target = c.least + 300*random.Float64()
			least, upper = least+c.least, upper+c.max
		}
		all := least + random.Float64()*(upper-least)
		proportion := divide(all, claims)
		sum := 0.0
		for _, c := range claims {
			sum += c.seats
			require.InDelta(t, min(max(proportion*c.target, c.least), c.max), c.seats, 1e-3)
		}
		require.InDelta(t, all, sum, 1e-6*(1+all))
	}
}
