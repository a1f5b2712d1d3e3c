package apiserver

import (
	"context"
	"net/http"
	"time"

	"github.com/coxswain-dev/coxswain/apiserver/metrics"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
)

// exchange accompanies a request in its context: it has what changes while the request is served, and the *request
// what does not. Server.observe makes it. It is for the goroutine of the request's handler; a part of the request
// that runs in another one has an exchange of its own (Server.deletionOf).
type exchange struct {
	// Writer is the response, with the memory and the seats that the request holds, and its audit record.
	responsewriter.Writer

	start time.Time
	// long marks a request that may go on for as long as the client likes.
	long bool
	// labels are the labels of the request in metrics, as far as they are known.
	labels metrics.Request
	// request is the request as its route has it. It is nil before the route is known, and for paths without objects.
	request *request
	// write is the write that the request asks for, once it has begun. The client is warned of its warnings even if
	// it is refused.
	write *write
}

type exchangeKey struct{}

// in returns a context in which exchangeOf finds the exchange.
func (e *exchange) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, exchangeKey{}, e)
}

// exchangeOf returns the exchange of the request that ctx belongs to. Outside of a request the result is empty: it
// reserves no memory and records nothing.
func exchangeOf(ctx context.Context) *exchange {
	if e, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return e
	}
	return &exchange{}
}

// resolved notes the request that the route leads to.
func (e *exchange) resolved(r *request) { e.request, e.labels = r, labelsOf(r) }

// Written returns the name of the object that a request has written or tried to write, "" if that is not known, and
// whether the write left the object as it was, which a dry run does not count as. Options.Middleware calls it after the
// request has been answered.
func Written(r *http.Request) (name string, unchanged bool) {
	wr := exchangeOf(r.Context()).write
	if wr == nil {
		return "", false
	}
	return wr.name, wr.unchanged && !wr.isDryRun()
}
