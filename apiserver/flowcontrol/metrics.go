package flowcontrol

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coxswain-dev/coxswain/internal/series"
)

// metrics have Kubernetes' names:
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#metrics.
type metrics struct {
	rejected, dispatched, unaccommodated *prometheus.CounterVec
	wait, execution, length, seats       *prometheus.HistogramVec
	fairness                             prometheus.Gauge
}

var bySchema = []string{"priority_level", "flow_schema"}

func newMetrics() *metrics {
	const namespace, subsystem = "apiserver", "flowcontrol"
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem,
			Name: name, Help: help},
			append(bySchema[:2:2], more...))
	}
	histogram := func(name, help string, buckets []float64, more ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem,
			Name: name, Help: help, Buckets: buckets},
			append(bySchema[:2:2], more...))
	}
	seconds := []float64{0, 0.005, 0.02, 0.1, 0.5, 1, 5, 15, 30}
	return &metrics{
		rejected: counter("rejected_requests_total",
			"Number of requests rejected by API Priority and Fairness subsystem", "reason"),
		dispatched: counter("dispatched_requests_total",
			"Number of requests executed by API Priority and Fairness subsystem"),
		unaccommodated: counter("request_dispatch_no_accommodation_total",
			"Number of times a dispatch attempt resulted in a non accommodation due to lack of available seats"),
		wait: histogram("request_wait_duration_seconds",
			"Length of time a request spent waiting in its queue", seconds, "execute"),
		execution: histogram("request_execution_seconds", "Duration of initial stage (for a WATCH) or any "+
			"(for a non-WATCH) stage of request execution in the API Priority and Fairness subsystem", seconds, "type"),
		length: histogram("request_queue_length_after_enqueue",
			"Length of queue in the API Priority and Fairness subsystem, as seen by each request after it is enqueued",
			[]float64{0, 10, 50, 250, 1000}),
		seats: histogram("work_estimated_seats", "Number of estimated seats (maximum of initial and final seats) "+
			"associated with requests in API Priority and Fairness", []float64{1, 2, 4, 10}),
		fairness: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem,
			Name: "seat_fair_frac",
			Help: "Fair fraction of server's concurrency to allocate to each priority level that can use it"}),
	}
}

// schemaMetrics are the metrics of one schema and its level, looked up once.
type schemaMetrics struct {
	metrics                    *metrics
	level, schema              string
	dispatched, unaccommodated prometheus.Counter
	waited, regular, watch     prometheus.Observer
	length, seats              prometheus.Observer
}

func (m *metrics) of(level, schema string) *schemaMetrics {
	return &schemaMetrics{
		metrics: m, level: level, schema: schema,
		dispatched: m.dispatched.WithLabelValues(level, schema), unaccommodated: m.unaccommodated.WithLabelValues(level,
			schema),
		waited:  m.wait.WithLabelValues(level, schema, "true"),
		regular: m.execution.WithLabelValues(level, schema, "regular"), watch: m.execution.WithLabelValues(level,
			schema, "watch"),
		length: m.length.WithLabelValues(level, schema), seats: m.seats.WithLabelValues(level, schema),
	}
}

// forget drops the metrics of a level that has ended.
func (m *metrics) forget(level string) {
	labels := prometheus.Labels{"priority_level": level}
	for _, vec := range []*prometheus.CounterVec{m.rejected, m.dispatched, m.unaccommodated} {
		vec.DeletePartialMatch(labels)
	}
	for _, vec := range []*prometheus.HistogramVec{m.wait, m.execution, m.length, m.seats} {
		vec.DeletePartialMatch(labels)
	}
}

func (m *schemaMetrics) reject(reason string) {
	m.metrics.rejected.WithLabelValues(m.level, m.schema, reason).Inc()
}

// queued observes the length of the queue that a request has joined.
func (m *schemaMetrics) queued(length int) { m.length.Observe(float64(length)) }

// dispatch counts a request that begins.
func (m *schemaMetrics) dispatch(r *Request) {
	m.dispatched.Inc()
	m.seats.Observe(float64(r.width))
	if !r.schema.level.exempt {
		m.waited.Observe((r.began - r.arrived).Seconds())
	}
}

// giveUp counts a request that has left its queue without being served.
func (m *schemaMetrics) giveUp(reason string, waited time.Duration) {
	m.reject(reason)
	m.metrics.wait.WithLabelValues(m.level, m.schema, "false").Observe(waited.Seconds())
}

func (m *schemaMetrics) finish(r *Request, took time.Duration) {
	if r.Verb == "watch" {
		m.watch.Observe(took.Seconds())
		return
	}
	m.regular.Observe(took.Seconds())
}

// Gauges are computed on each collection.
var (
	inQueue = gauge("current_inqueue_requests",
		"Number of requests currently pending in queues of the API Priority and Fairness subsystem", bySchema...)
	nowExecuting = gauge("current_executing_requests", "Number of requests in initial (for a WATCH) or any (for "+
		"a non-WATCH) execution stage in the API Priority and Fairness subsystem", bySchema...)
	executingSeats = gauge("current_executing_seats", "Concurrency (number of seats) occupied by the currently "+
		"executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness "+
		"subsystem", bySchema...)

	levelGauges = []struct {
		desc *prometheus.Desc
		of   func(*level) float64
	}{
		{levelGauge("nominal_limit_seats", "Nominal number of execution seats configured for each priority level"),
			func(l *level) float64 {
				return float64(l.nominal)
			}},
		{levelGauge("lower_limit_seats", "Configured lower bound on number of execution seats available to each "+
			"priority level"), func(l *level) float64 {
			return float64(l.lower)
		}},
		{levelGauge("upper_limit_seats", "Configured upper bound on number of execution seats available to each "+
			"priority level"), func(l *level) float64 {
			return float64(l.upper)
		}},
		{levelGauge("current_limit_seats",
			"current derived number of execution seats available to each priority level"), func(l *level) float64 {
			return float64(l.limit)
		}},
		{levelGauge("demand_seats_high_watermark", "High watermark, over last adjustment period, of demand_seats"),
			func(l *level) float64 {
				return l.stats.high
			}},
		{levelGauge("demand_seats_average", "Time-weighted average, over last adjustment period, of demand_seats"),
			func(l *level) float64 {
				return l.stats.mean
			}},
		{levelGauge("demand_seats_stdev",
			"Time-weighted standard deviation, over last adjustment period, of demand_seats"), func(l *level) float64 {
			return l.stats.deviation
		}},
		{levelGauge("demand_seats_smoothed", "Smoothed seat demands"), func(l *level) float64 {
			return l.stats.smoothed
		}},
		{levelGauge("target_seats", "Seat allocation targets"), func(l *level) float64 { return l.stats.target }},
	}
)

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("apiserver_flowcontrol_"+name, help, labels, nil)
}

func levelGauge(name, help string) *prometheus.Desc { return gauge(name, help, bySchema[0]) }

// Describe implements prometheus.Collector.
func (d *Dispatcher) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range d.metrics.all() {
		c.Describe(ch)
	}
	for _, desc := range []*prometheus.Desc{inQueue, nowExecuting, executingSeats} {
		ch <- desc
	}
	for i := range levelGauges {
		ch <- levelGauges[i].desc
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.rejected, m.dispatched, m.unaccommodated, m.wait, m.execution, m.length,
		m.seats, m.fairness}
}

// Collect implements prometheus.Collector.
func (d *Dispatcher) Collect(ch chan<- prometheus.Metric) {
	for _, c := range d.metrics.all() {
		series.Used(c).Collect(ch)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.levels {
		l.mu.Lock()
		for i := range levelGauges {
			ch <- prometheus.MustNewConstMetric(levelGauges[i].desc, prometheus.GaugeValue, levelGauges[i].of(l),
				l.name)
		}
		waiting, executing, seats := l.bySchema()
		l.mu.Unlock()
		for _, s := range d.config.Load().schemas {
			if s.level != l {
				continue
			}
			for desc, n := range map[*prometheus.Desc]int{inQueue: waiting[s.name], nowExecuting: executing[s.name],
				executingSeats: seats[s.name]} {
				ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), l.name, s.name)
			}
		}
	}
}

// bySchema counts the level's requests. The caller holds the lock.
func (l *level) bySchema() (waiting, executing, seats map[string]int) {
	waiting, executing, seats = map[string]int{}, map[string]int{}, map[string]int{}
	for _, q := range l.backlog {
		for r := q.waiting.first; r != nil; r = r.next {
			waiting[r.schema.name]++
		}
	}
	for r := l.executing.first; r != nil; r = r.next {
		executing[r.schema.name]++
		seats[r.schema.name] += r.width
	}
	return waiting, executing, seats
}
