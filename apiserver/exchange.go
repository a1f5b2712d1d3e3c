package apiserver

import (
	"context"
	"net/http"
	"time"

	"github.com/coxswain-dev/coxswain/apiserver/metrics"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
)

// exchange is the state of a request that changes while it is served; *request is the rest. Server.observe creates it
// and puts it into the request's context. Only the goroutine of the request's handler may use it. A part of the request
// that runs in another goroutine has an exchange of its own (Server.deletionOf).
type exchange struct {
	// Writer is the response, with the memory and the seats that the request holds, and its audit record.
	responsewriter.Writer

	start time.Time
	// long marks a request without a deadline.
	long bool
	// labels are the labels of the request in metrics. They are completed when the route has been resolved.
	labels metrics.Request
	// request is nil before the route has been resolved, and for paths that are not resources.
	request *request
	// write is the write that the request asks for, once it has begun. Its warnings are sent even if it is rejected.
	write *write
}

type exchangeKey struct{}

// in returns a context in which exchangeOf finds the exchange.
func (e *exchange) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, exchangeKey{}, e)
}

// exchangeOf returns the exchange of the request that ctx belongs to. Outside of a request it returns an empty one,
// which reserves no memory and has no audit record.
func exchangeOf(ctx context.Context) *exchange {
	if e, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return e
	}
	return &exchange{}
}

// resolved sets the request that the route leads to.
func (e *exchange) resolved(r *request) { e.request, e.labels = r, labelsOf(r) }

// Written returns the name of the object that a request has written or tried to write, "" if there is none, and whether
// the write left the object unchanged. A dry run is not reported as unchanged. Options.Middleware calls it after the
// request has been answered.
func Written(r *http.Request) (name string, unchanged bool) {
	wr := exchangeOf(r.Context()).write
	if wr == nil {
		return "", false
	}
	return wr.name, wr.unchanged && !wr.isDryRun()
}
