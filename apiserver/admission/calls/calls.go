// Package calls records the results of admission webhook calls: which webhooks denied requests lately, which were
// slow, and which failed. The caller passes a Call when it has ended. The results are kube-apiserver's metrics
// (metrics.go) and the Report that /debug/admission_webhooks serves.
//
// Both are bounded. Of a request's objects they contain only the text in a webhook's messages.
package calls

import (
	"cmp"
	"slices"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// maxWebhooks limits the webhooks in a Report, and maxRecent the calls of each.
	maxWebhooks = 128
	maxRecent   = 10
	// maxMessage limits a stored message, in bytes.
	maxMessage = 512
)

// Type is the type of a webhook, with kube-apiserver's names in metrics.
type Type string

// The types of webhooks.
const (
	Mutating   Type = "admit"
	Validating Type = "validating"
)

// Outcome is the result of a call.
type Outcome string

// The outcomes. Failed means that this server could not use the webhook's answer, or got none.
const (
	Allowed Outcome = "allowed"
	Denied  Outcome = "denied"
	Failed  Outcome = "failed"
)

// Call is one ended call of a webhook.
type Call struct {
	Configuration, Webhook string
	Type                   Type
	Operation              string
	At                     time.Time
	Took                   time.Duration
	Outcome                Outcome
	// Rejected reports whether the request ends with the call, and ErrorType is the reason. Canceled means that the
	// client has left.
	Rejected, Canceled bool
	ErrorType          string
	// Code is the HTTP status of the outcome, and Message the text for the client if the call did not succeed.
	Code    int
	Message string
}

// Report is the answer of /debug/admission_webhooks: the recently called webhooks, the last one first.
type Report struct {
	Webhooks []Webhook `json:"webhooks"`
}

// Webhook is one webhook in a Report. It counts the calls of this server since its start, or since the webhook
// entered the report again after many others were called.
type Webhook struct {
	Configuration string `json:"configuration"`
	Webhook       string `json:"webhook"`
	// Type is Mutating or Validating, in kube-apiserver's words: admit or validating.
	Type Type `json:"type"`
	// LastCalled is when the last call began, and LastSeconds its duration.
	LastCalled  time.Time `json:"lastCalled"`
	LastSeconds float64   `json:"lastSeconds"`
	Allowed     int64     `json:"allowed"`
	Denied      int64     `json:"denied"`
	Failed      int64     `json:"failed"`
	// FailedOpen is the number of failures that were ignored because of the webhook's failurePolicy.
	FailedOpen int64 `json:"failedOpen"`
	// Recent lists the last calls, the newest first.
	Recent []Recent `json:"recent"`
}

// Recent is one call in a Report.
type Recent struct {
	At        time.Time `json:"at"`
	Seconds   float64   `json:"seconds"`
	Operation string    `json:"operation"`
	Outcome   Outcome   `json:"outcome"`
	// Code is the HTTP status of the outcome; Message is "" for an allowed request.
	Code    int    `json:"code"`
	Message string `json:"message,omitempty"`
}

// Log records calls. Its methods are safe for concurrent use.
type Log struct {
	metrics metrics

	mu    sync.Mutex
	known map[key]*Webhook
}

type key struct {
	configuration, webhook string
	kind                   Type
}

// NewLog returns an empty log.
func NewLog() *Log { return &Log{metrics: newMetrics(), known: map[key]*Webhook{}} }

// Done records a call.
func (l *Log) Done(c Call) {
	l.metrics.done(&c)
	l.mu.Lock()
	defer l.mu.Unlock()
	k := key{c.Configuration, c.Webhook, c.Type}
	w := l.known[k]
	if w == nil {
		l.makeRoom()
		w = &Webhook{Configuration: c.Configuration, Webhook: c.Webhook, Type: c.Type}
		l.known[k] = w
	}
	w.add(&c)
}

// add adds a call, and drops the oldest if there are too many.
func (w *Webhook) add(c *Call) {
	w.LastCalled, w.LastSeconds = c.At, c.Took.Seconds()
	switch c.Outcome {
	case Allowed:
		w.Allowed++
	case Denied:
		w.Denied++
	case Failed:
		w.Failed++
		if !c.Rejected {
			w.FailedOpen++
		}
	}
	if len(w.Recent) == maxRecent {
		copy(w.Recent, w.Recent[1:])
		w.Recent = w.Recent[:maxRecent-1]
	}
	w.Recent = append(w.Recent, Recent{At: c.At, Seconds: c.Took.Seconds(), Operation: c.Operation, Outcome: c.Outcome,
		Code: c.Code, Message: shortened(c.Message)})
}

// makeRoom drops the least recently called webhook, if there are too many. The caller holds l.mu.
func (l *Log) makeRoom() {
	if len(l.known) < maxWebhooks {
		return
	}
	var oldest key
	var least *Webhook
	for k, w := range l.known {
		if least == nil || w.LastCalled.Before(least.LastCalled) {
			oldest, least = k, w
		}
	}
	delete(l.known, oldest)
}

// Report returns the recently called webhooks.
func (l *Log) Report() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	report := Report{Webhooks: make([]Webhook, 0, len(l.known))}
	for _, w := range l.known {
		shown := *w
		shown.Recent = slices.Clone(w.Recent)
		slices.Reverse(shown.Recent)
		report.Webhooks = append(report.Webhooks, shown)
	}
	slices.SortFunc(report.Webhooks, func(a, b Webhook) int {
		return cmp.Or(b.LastCalled.Compare(a.LastCalled), cmp.Compare(a.Configuration, b.Configuration),
			cmp.Compare(a.Webhook, b.Webhook), cmp.Compare(a.Type, b.Type))
	})
	return report
}

// shortened returns the beginning of a message as a separate string, so that the whole one is not kept alive.
func shortened(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	end := maxMessage
	for end > 0 && !utf8.RuneStart(message[end]) {
		end--
	}
	return string([]byte(message[:end])) + "…"
}
