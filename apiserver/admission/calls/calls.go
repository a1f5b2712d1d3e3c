// Package calls remembers how the calls of admission webhooks went: which refused a request lately, which were slow,
// and which failed. A Call comes in when it has ended; kube-apiserver's metrics (metrics.go) and the Report that
// /debug/admission_webhooks serves go out.
//
// Both are bounded, and hold nothing of a request's objects but what a webhook says about them.
package calls

import (
	"cmp"
	"slices"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// maxWebhooks is how many webhooks a Report shows, maxRecent how many calls of each.
	maxWebhooks = 128
	maxRecent   = 10
	// maxMessage is how many bytes of a message are kept.
	maxMessage = 512
)

// Type is the sort of a webhook, by kube-apiserver's name for it in metrics.
type Type string

// The sorts of webhooks.
const (
	Mutating   Type = "admit"
	Validating Type = "validating"
)

// Outcome is how a call ended.
type Outcome string

// The outcomes. A webhook that has Failed has not given an answer that this server could use.
const (
	Allowed Outcome = "allowed"
	Denied  Outcome = "denied"
	Failed  Outcome = "failed"
)

// Call is one call of a webhook that has ended.
type Call struct {
	Configuration, Webhook string
	Type                   Type
	Operation              string
	At                     time.Time
	Took                   time.Duration
	Outcome                Outcome
	// Rejected means that the request ends with the call, ErrorType why. Canceled means that the client has left.
	Rejected, Canceled bool
	ErrorType          string
	// Code is the HTTP status of the outcome, Message says what a client is told of a call that did not succeed.
	Code    int
	Message string
}

// Report is the answer of /debug/admission_webhooks: the webhooks that were called lately, the last one first.
type Report struct {
	Webhooks []Webhook `json:"webhooks"`
}

// Webhook is one webhook in a Report. The counts are those of this server, since its start or since the webhook was
// called again after many others.
type Webhook struct {
	Configuration string `json:"configuration"`
	Webhook       string `json:"webhook"`
	// Type is Mutating or Validating, in kube-apiserver's words: admit or validating.
	Type Type `json:"type"`
	// LastCalled is when the last call began, and LastSeconds how long it took.
	LastCalled  time.Time `json:"lastCalled"`
	LastSeconds float64   `json:"lastSeconds"`
	Allowed     int64     `json:"allowed"`
	Denied      int64     `json:"denied"`
	Failed      int64     `json:"failed"`
	// FailedOpen is how many of the failures were ignored, by the webhook's failurePolicy.
	FailedOpen int64 `json:"failedOpen"`
	// Recent are the last calls, the newest first.
	Recent []Recent `json:"recent"`
}

// Recent is one call in a Report.
type Recent struct {
	At        time.Time `json:"at"`
	Seconds   float64   `json:"seconds"`
	Operation string    `json:"operation"`
	Outcome   Outcome   `json:"outcome"`
	// Code is the HTTP status of the outcome; Message is "" for a request that was allowed.
	Code    int    `json:"code"`
	Message string `json:"message,omitempty"`
}

// Log remembers calls. Its methods are safe for concurrent use.
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

// Done remembers a call.
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

// add adds a call, and forgets the oldest of many.
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

// makeRoom forgets the webhook that was called the longest ago, if there are too many. l.mu is held.
func (l *Log) makeRoom() {
	if len(l.known) < maxWebhooks {
		return
	}
	var oldest key
	var at *Webhook
	for k, w := range l.known {
		if at == nil || w.LastCalled.Before(at.LastCalled) {
			oldest, at = k, w
		}
	}
	delete(l.known, oldest)
}

// Report returns the webhooks that were called lately.
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

// shortened is the beginning of a message, in a string of its own.
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
