package audit

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coxswain-dev/coxswain/apiserver/reload"
)

// Auditor records events according to a policy. It is safe for concurrent use.
type Auditor struct {
	policy  *reload.Files[*Policy]
	sinks   []*sink
	metrics *metrics
}

// Open returns an Auditor for the options and reloads the files they name when these change. It returns nil if the
// options have no policy or no output. The caller must close the Auditor.
func Open(o Options, log *slog.Logger) (*Auditor, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	recorded := o.Log.Path != "" || o.Webhook.ConfigFile != ""
	if o.PolicyFile == "" || !recorded {
		if recorded {
			log.Warn("nothing is audited: there is no --audit-policy-file")
		} else if o.PolicyFile != "" {
			log.Warn("nothing is audited: there is neither --audit-log-path nor --audit-webhook-config-file")
		}
		return nil, nil
	}
	a := &Auditor{metrics: newMetrics()}
	var err error
	if a.policy, err = reload.Open(log, func(contents [][]byte) (*Policy, error) {
		return ParsePolicy(contents[0])
	}, o.PolicyFile); err != nil {
		return nil, err
	}
	err = a.open(o, log)
	if err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

func (a *Auditor) open(o Options, log *slog.Logger) error {
	if o.Log.Path != "" {
		output, err := openLog(o.Log, log)
		if err != nil {
			return err
		}
		a.sinks = append(a.sinks, newSink("log", o.Log.Format == FormatLegacy, o.Log.Batch, o.Log.Truncate, output,
			a.metrics, log))
	}
	if o.Webhook.ConfigFile != "" {
		output, err := openWebhook(o.Webhook, log)
		if err != nil {
			return err
		}
		a.sinks = append(a.sinks,
			newSink("webhook", false, o.Webhook.Batch, o.Webhook.Truncate, output, a.metrics, log))
	}
	return nil
}

// Close flushes the buffered events. Later events are lost.
func (a *Auditor) Close() error {
	if a == nil {
		return nil
	}
	var errs []error
	for _, s := range a.sinks {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

// Describe implements prometheus.Collector.
func (a *Auditor) Describe(ch chan<- *prometheus.Desc) { a.metrics.describe(ch) }

// Collect implements prometheus.Collector.
func (a *Auditor) Collect(ch chan<- prometheus.Metric) { a.metrics.collect(ch) }

// buffers holds buffers for encoding events.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxPooled limits the size of the buffers that are kept in the pool.
const maxPooled = 64 << 10

// record passes an event to all sinks. It returns false if the request must be rejected.
func (a *Auditor) record(e *event) bool {
	a.metrics.events.Inc()
	buffer := buffers.Get().(*[]byte)
	line := append(e.append(append((*buffer)[:0], typeMeta...), true), '\n')
	accepted := true
	for _, s := range a.sinks {
		if !s.record(e, line) && e.stage == StageRequestReceived {
			accepted = false
		}
	}
	if !accepted {
		a.metrics.rejected.Inc()
	}
	if cap(line) <= maxPooled {
		*buffer = line
		buffers.Put(buffer)
	}
	return accepted
}
