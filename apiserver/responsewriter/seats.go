package responsewriter

import (
	"context"
	"errors"
	"net/http"
	"time"

	flowv1 "k8s.io/api/flowcontrol/v1"

	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol/config"
	"github.com/coxswain-dev/coxswain/apiserver/status"
)

// The headers that name the FlowSchema and the priority level of a request, by UID, since any client may see UIDs. They
// are in http.Header's canonical form, so that they need not be converted for each request.
var (
	schemaHeader = http.CanonicalHeaderKey(flowv1.ResponseHeaderMatchedFlowSchemaUID)
	levelHeader  = http.CanonicalHeaderKey(flowv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
)

// flow returns flow control; nil if there is none.
func (w *Writer) flow() *config.Follower {
	if w.limiter == nil {
		return nil
	}
	return w.limiter.Flow
}

// TakeSeats classifies the request, names its schema and level in header, and waits until flow control serves it. A
// request takes seats once. ReleaseSeats must follow in any case.
func (w *Writer) TakeSeats(ctx context.Context, header http.Header, seat flowcontrol.Request) error {
	flow := w.flow()
	if flow == nil {
		return nil
	}
	flow.Refresh(context.Background()) // on behalf of all requests: it does not end with this one
	w.seat = seat
	c := flow.Classify(&w.seat)
	uids := []string{c.SchemaUID, c.LevelUID}
	header[schemaHeader], header[levelHeader] = uids[:1:1], uids[1:]
	err := flow.Start(ctx, &w.seat)
	w.audit.Took(audit.Queue, w.seat.Waited())
	if errors.As(err, new(*flowcontrol.Rejection)) {
		return status.TooManyRequests()
	}
	return nil
}

// ReleaseSeats returns the request's seats, if it holds any.
func (w *Writer) ReleaseSeats() {
	if flow := w.flow(); flow != nil {
		flow.Finish(&w.seat)
	}
}

// Waited returns how long the request has waited for its seats at first.
func (w *Writer) Waited() time.Duration { return w.seat.Waited() }

// needsNoMoreSeats reports whether the request may be finished without seats once it has had to wait. That holds for
// lists and watches: slots bound the processor time that encoding takes, and they do not write to the store.
func (w *Writer) needsNoMoreSeats() bool { return w.seat.Verb == "list" || w.seat.Verb == "watch" }

// yieldSeats releases the seats if the request, which is about to wait for memory or for its client, waits for longer
// than slowAfter. The caller calls resume after the wait: it takes seats again if they were released and are still
// needed. Its error is the rejection by flow control.
func (w *Writer) yieldSeats(ctx context.Context) (resume func() error) {
	if w.flow() == nil || !w.seat.Executing() {
		return func() error { return nil }
	}
	done := whenSlow(w.ReleaseSeats)
	return func() error {
		done()
		if w.seat.Executing() || w.needsNoMoreSeats() {
			return nil
		}
		if w.flow().Start(ctx, &w.seat) != nil {
			return status.TooManyRequests()
		}
		return nil
	}
}
