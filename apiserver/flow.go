package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api/flowcontrol/mandatory"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/controlplane"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol/config"
	"github.com/coxswain-dev/coxswain/apiserver/query"
)

// newFlow sets up API Priority and Fairness or, if that is disabled, plain limits.
func (s *Server) newFlow(ctx context.Context) error {
	reading, writing := s.Limits.RequestsInFlight, s.Limits.MutatingRequestsInFlight
	if s.Limits.NoPriorityAndFairness {
		s.inflight = flowcontrol.NewInFlight(reading, writing)
		return nil
	}
	seats := max(reading, 0) + max(writing, 0)
	if seats == 0 {
		return errors.New(
			"the limits of reading and of writing requests must add up to something positive for priority and fairness")
	}
	d := flowcontrol.New(flowcontrol.Options{
		Seats: seats, QueueWait: s.RequestTimeout / 4, Levels: mandatory.PriorityLevels(),
		Schemas: mandatory.FlowSchemas(),
		// Durations of requests are measured in real time, even if the cluster's clock is moved by hand.
		Clock: clock.RealClock{},
	})
	s.registry.MustRegister(d)
	var kinds []config.Kind
	for _, res := range controlplane.FlowKinds(s.Registry.Snapshot()) {
		kinds = append(kinds, config.Kind{Resource: res, Objects: s.collection(res)})
	}
	s.flow = config.New(d, kinds, s.Log)
	s.flow.Refresh(ctx)
	s.limiter.Flow = s.flow
	return nil
}

// takeSeat waits until flow control serves a request that needs a number of seats. returnSeats returns them.
func (s *Server) takeSeat(w http.ResponseWriter, hr *http.Request, a *authz.Attributes, width int) error {
	if s.flow == nil {
		return nil
	}
	return exchangeOf(hr.Context()).TakeSeats(hr.Context(), w.Header(), flowcontrol.Request{
		User: a.User.Name, Groups: a.User.Groups, Verb: a.Verb, Path: a.Path, Group: a.Group, Version: a.Version,
		Resource: a.Resource, Subresource: a.Subresource, Namespace: a.Namespace, Name: a.Name, Seats: width,
	})
}

// width returns how many seats the request needs. A list, or a watch with initial events, needs more seats the more
// objects it reads.
func (r *request) width(a *authz.Attributes) int {
	if r.objects == nil || a.Name != "" || a.Verb != "list" &&
		!(a.Verb == "watch" && query.Flag(r.query, "sendInitialEvents")) {
		return 1
	}
	n := r.objects.CountIn(r.namespace)
	if limit, err := strconv.Atoi(r.query.Get("limit")); err == nil && limit > 0 && a.Verb == "list" &&
		r.query.Get("labelSelector") == "" && r.query.Get("fieldSelector") == "" {
		n = min(n, limit)
	}
	return flowcontrol.WidthOf(n)
}

// serveFlowDump shows the state of flow control, for people.
func (s *Server) serveFlowDump(w http.ResponseWriter, r *http.Request) error {
	dump := map[string]func(io.Writer) error{
		"dump_priority_levels": s.flow.DumpLevels,
		"dump_queues":          s.flow.DumpQueues,
		"dump_requests": func(w io.Writer) error {
			return s.flow.DumpRequests(w, r.URL.Query().Get("includeRequestDetails") != "")
		},
	}[chi.URLParam(r, "dump")]
	if dump == nil {
		return notFoundPath()
	}
	var text bytes.Buffer // the client may be slow, and flow control is locked during the dump
	if err := dump(&text); err != nil {
		return err
	}
	return s.writeBody(w, r, encoding.Output{Media: "text/plain; charset=utf-8"}, http.StatusOK, text.Bytes())
}
