// Package series limits the number of series on /metrics. A metric has one series for each combination of its
// labels' values, and a histogram has one for each bucket. Kinds, verbs, scopes and codes multiply to megabytes,
// although a dashboard reads few of them and a server has used few of them lately.
//
// The caller gives label values as a comparable key, and gets the metrics of that key. A fixed number of keys is
// kept: the most recently used ones.
package series

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Recent returns metrics by key and keeps the metrics of the most recently used keys. An evicted key starts from
// zero when it is used again, as after a restart; no event is counted twice. It is safe for concurrent use.
type Recent[K comparable, M any] struct {
	limit int
	begin func(K) M
	end   func(K)

	turn  atomic.Int64
	mu    sync.RWMutex
	known map[K]*used[M]
}

type used[M any] struct {
	metrics M
	turn    atomic.Int64 // the turn of its last use
}

// NewRecent returns a Recent that keeps the metrics of at most limit keys. begin makes the metrics of a key, and
// end removes them.
func NewRecent[K comparable, M any](limit int, begin func(K) M, end func(K)) *Recent[K, M] {
	return &Recent[K, M]{limit: limit, begin: begin, end: end, known: make(map[K]*used[M])}
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
	if len(r.known) >= r.limit {
		r.giveWay()
	}
	u := &used[M]{metrics: r.begin(key)}
	u.turn.Store(r.turn.Add(1))
	r.known[key] = u
	return u
}

// Forget removes the metrics of all keys that gone accepts. gone must not use r.
func (r *Recent[K, M]) Forget(gone func(K) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.known {
		if gone(key) {
			delete(r.known, key)
			r.end(key)
		}
	}
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

// Used hides the counters and histograms of a collector that have not counted anything yet.
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
