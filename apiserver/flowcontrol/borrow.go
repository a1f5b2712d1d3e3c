package flowcontrol

import (
	"math"
	"slices"
	"strings"
	"time"
)

// demand integrates a level's demand over a period. The demand is the number of seats in use, plus the seats that
// requests wait for. The level's lock guards it.
type demand struct {
	seats         float64 // since last
	began, last   time.Duration
	sum, squares  float64 // seat-seconds, and squared seats times seconds
	highWatermark float64
}

// note sets the number of seats in demand from now on.
func (d *demand) note(now time.Duration, seats int) {
	d.pass(now)
	d.seats = float64(seats)
	d.highWatermark = max(d.highWatermark, d.seats)
}

func (d *demand) pass(now time.Duration) {
	if took := (now - d.last).Seconds(); took > 0 {
		d.sum += d.seats * took
		d.squares += d.seats * d.seats * took
		d.last = now
	}
}

// reset begins a new period. It returns the old one's mean, standard deviation and highest demand.
func (d *demand) reset(now time.Duration) (mean, deviation, high float64) {
	d.pass(now)
	mean, high = d.seats, d.highWatermark
	if took := (d.last - d.began).Seconds(); took > 0 {
		mean = d.sum / took
		deviation = math.Sqrt(max(0, d.squares/took-mean*mean))
	}
	*d = demand{seats: d.seats, began: now, last: now, highWatermark: d.seats}
	return mean, deviation, high
}

// smoothing is the weight of the past when the demand falls (KEP-1040: its half-life is five minutes).
const smoothing = 0.977

// stats describe a level's demand, in seats: over the last period and, smoothed, over all periods.
type stats struct{ high, mean, deviation, smoothed, target float64 }

func (s *stats) update(mean, deviation, high float64) {
	envelope := mean + deviation
	s.mean, s.deviation, s.high = mean, deviation, high
	s.smoothed = max(envelope, smoothing*s.smoothed+(1-smoothing)*envelope)
}

// adjust divides all seats again by the levels' demands:
// https://github.com/kubernetes/enhancements/tree/master/keps/sig-api-machinery/1040-priority-and-fairness#seat-borrowing.
// Each level keeps the seats that it does not lend, and its own seats that it used. The use of exempt levels is
// subtracted first. The remaining seats are divided in proportion to the demands, within the levels' bounds. d.mu is
// held.
func (d *Dispatcher) adjust() {
	now := d.now()
	left := 0
	var limited []*level
	for _, l := range d.levels {
		l.mu.Lock()
		l.stats.update(l.demand.reset(now))
		l.mu.Unlock()
		left += l.nominal
		if !l.exempt {
			limited = append(limited, l)
		}
	}
	slices.SortFunc(limited, func(a, b *level) int { return strings.Compare(a.name, b.name) })
	for _, l := range d.levels {
		if l.exempt {
			sure := max(l.lower, int(math.Round(l.stats.high)))
			l.stats.target = float64(sure)
			l.limitTo(now, sure)
			left -= sure
		}
	}
	claims := make([]claim, len(limited))
	lower, sure := 0, 0
	for i, l := range limited {
		c := &claims[i]
		c.least = float64(max(l.lower, min(l.nominal, int(math.Round(l.stats.high)))))
		c.max = max(c.least, float64(l.upper))
		c.target = max(c.least, l.stats.smoothed)
		l.stats.target = c.target
		lower += l.lower
		sure += int(c.least)
	}
	var fair float64
	switch {
	case left <= lower: // exempt requests leave less than the lower bounds
		for i, l := range limited {
			claims[i].seats = float64(l.lower)
		}
	case left <= sure:
		part := float64(left-lower) / float64(sure-lower)
		for i, l := range limited {
			claims[i].seats = float64(l.lower) + math.Round(part*(claims[i].least-float64(l.lower)))
		}
	default:
		fair = divide(float64(left), claims)
	}
	for i, l := range limited {
		l.limitTo(now, int(math.Round(claims[i].seats)))
	}
	d.metrics.fairness.Set(fair)
}

// claim is one level's part in a division.
type claim struct{ target, least, max, seats float64 }

// divide gives each claim its target times a common proportion, limited to the claim's bounds, so that
// all seats are given out. It returns the proportion. If the upper bounds together are less than the
// number of seats, each claim gets its upper bound.
func divide(all float64, claims []claim) float64 {
	const leastTarget = 0.001 // for a claim without demand, so that there is a proportion
	assign := func(proportion float64) (sum float64) {
		for i := range claims {
			c := &claims[i]
			c.seats = min(max(proportion*max(c.target, leastTarget), c.least), c.max)
			sum += c.seats
		}
		return sum
	}
	// The sum grows with the proportion, from all the least to all the most.
	low, high := 0.0, 1.0
	for high < 1e12 && assign(high) < all {
		low, high = high, high*2
	}
	for range 100 {
		middle := (low + high) / 2
		if assign(middle) < all {
			low = middle
		} else {
			high = middle
		}
	}
	assign(high)
	return high
}
