// Package series bounds the number of series on /metrics. A metric has one series for each combination
// of its labels' values, and a histogram one for each bucket: kinds, verbs, scopes and codes multiply
// to megabytes, of which a dashboard reads little and a server has used little lately.
//
// What comes in: label values, as a comparable key. What goes out: the metrics of that key. Only a
// fixed number of keys is kept, those used last.
package series

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Recent hands out metrics by key and keeps those of the keys that were used last. A key that was
// evicted starts from zero when it is used again, as after a restart; nothing is counted twice. It is
// safe for concurrent use.
type Recent[K comparable, M any] struct {
	most  int
	begin func(K) M
	end   func(K)

	turn  atomic.Int64
	mu    sync.RWMutex
	known map[K]*used[M]
}

type used[M any] struct {
	metrics M
	turn    atomic.Int64 // when it was used last
}

// NewRecent keeps the metrics of at most that many keys. begin makes the metrics of a key, and end
// removes them.
func NewRecent[K comparable, M any](most int, begin func(K) M, end func(K)) *Recent[K, M] {
	return &Recent[K, M]{most: most, begin: begin, end: end, known: make(map[K]*used[M])}
}

// Of returns the metrics of a key.
func (r *Recent[K, M]) Of(key K) M {
	r.mu.RLock()
	u := r.known[key]
	r.mu.RUnlock()
	if u == nil {
		u = r.add(key)
	}
	u.turn.Store(r.turn.Add(1))
	return u.metrics
}

func (r *Recent[K, M]) add(key K) *used[M] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u := r.known[key]; u != nil {
		return u
	}
	if len(r.known) >= r.most {
		r.giveWay()
	}
	u := &used[M]{metrics: r.begin(key)}
	u.turn.Store(r.turn.Add(1))
	r.known[key] = u
	return u
}

// giveWay evicts the least recently used key.
func (r *Recent[K, M]) giveWay() {
	var oldest K
	turn := int64(-1)
	for key, u := range r.known {
		if t := u.turn.Load(); turn < 0 || t < turn {
			oldest, turn = key, t
		}
	}
	delete(r.known, oldest)
	r.end(oldest)
}

// Used leaves out the counters and histograms of a collector that have counted nothing yet.
func Used(c prometheus.Collector) prometheus.Collector { return counted{c} }

type counted struct{ prometheus.Collector }

// Collect implements prometheus.Collector.
func (c counted) Collect(ch chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric)
	go func() {
		defer close(all)
		c.Collector.Collect(all)
	}()
	for m := range all {
		var d dto.Metric
		if err := m.Write(&d); err == nil && isZero(&d) {
			continue
		}
		ch <- m
	}
}

func isZero(d *dto.Metric) bool {
	return d.Counter.GetValue() == 0 && d.Histogram.GetSampleCount() == 0 && d.Gauge == nil
}
