// Package series bounds what /metrics has to tell. A family of metrics has a series for each combination of its
// labels' values, a histogram one for each bucket besides: kinds, verbs, scopes and codes multiply to megabytes, of
// which a dashboard looks at little and a server has used little lately.
//
// What comes in: label values, as a comparable key. What goes out: the metrics of that key, and of the rest of them no
// more than a fixed number, those used last.
package series

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Recent hands out metrics by key and keeps those of the keys that were used last. A key that had to give way begins
// anew when it is used again, as after a restart; nothing is counted twice. It is safe for concurrent use.
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

// NewRecent keeps the metrics of so many keys. begin makes those of a key, end takes them away.
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

// giveWay ends the key that was not used for the longest time.
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

// Used is a collector without the counters and histograms that have counted nothing yet.
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
