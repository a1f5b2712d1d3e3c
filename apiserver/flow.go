package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5"
	flowv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol"
)

// newFlow begins to judge requests: by API Priority and Fairness or, where that is not wanted, by plain limits.
func (s *Server) newFlow(ctx context.Context) error {
	reading, writing := s.Limits.RequestsInFlight, s.Limits.MutatingRequestsInFlight
	if s.Limits.NoPriorityAndFairness {
		s.inflight = inflight{readOnly: newPlaces(reading), mutating: newPlaces(writing)}
		return nil
	}
	seats := max(reading, 0) + max(writing, 0)
	if seats == 0 {
		return errors.New("the limits of reading and of writing requests must add up to something positive for priority and fairness")
	}
	d := flowcontrol.New(flowcontrol.Options{
		Seats: seats, QueueWait: s.RequestTimeout / 4, Levels: api.MandatoryPriorityLevels(), Schemas: api.MandatoryFlowSchemas(),
		// How long requests take is by the clock on the wall, whatever time the cluster has.
		Clock: clock.RealClock{},
	})
	s.metrics.registry.MustRegister(d)
	s.flow = s.newFlowObjects(d)
	s.flow.refresh(ctx)
	return nil
}

// The headers that name what judged a request, by UIDs as those are told to anyone. In the form that
// http.Header keeps, so that they need not be brought into it for each request.
var (
	schemaHeader = http.CanonicalHeaderKey(flowv1.ResponseHeaderMatchedFlowSchemaUID)
	levelHeader  = http.CanonicalHeaderKey(flowv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
)

// takeSeat waits until the request may be served, for which it would like so many seats. leaveSeat
// must follow, whether it may or not.
func (s *Server) takeSeat(w http.ResponseWriter, hr *http.Request, seat *flowcontrol.Request, a *authz.Attributes, width int) error {
	if s.flow == nil {
		return nil
	}
	s.flow.refresh(context.Background())
	*seat = flowcontrol.Request{
		User: a.User.Name, Groups: a.User.Groups, Verb: a.Verb, Path: a.Path,
		Group: a.Group, Version: a.Version, Resource: a.Resource, Subresource: a.Subresource, Namespace: a.Namespace, Name: a.Name,
		Seats: width,
	}
	c := s.flow.dispatch.Classify(seat)
	uids := []string{c.SchemaUID, c.LevelUID}
	w.Header()[schemaHeader], w.Header()[levelHeader] = uids[:1:1], uids[1:]
	var full *flowcontrol.Rejection
	if err := s.flow.dispatch.Start(hr.Context(), seat); errors.As(err, &full) {
		return tooMany()
	}
	return nil
}

// leaveSeat gives the seats back, if there are any.
func (s *Server) leaveSeat(seat *flowcontrol.Request) {
	if s.flow != nil {
		s.flow.dispatch.Finish(seat)
	}
}

// objectsPerSeat is kube-apiserver's.
const objectsPerSeat = 100

// width is how many seats the request would like. A list, or a watch that begins with one, is as wide as
// the objects are many that are gone through.
func (r *request) width(a *authz.Attributes) int {
	if r.objects == nil || a.Name != "" || a.Verb != "list" && !(a.Verb == "watch" && flag(r.query, "sendInitialEvents")) {
		return 1
	}
	n := r.objects.Count()
	if limit, err := strconv.Atoi(r.query.Get("limit")); err == nil && limit > 0 && a.Verb == "list" &&
		r.query.Get("labelSelector") == "" && r.query.Get("fieldSelector") == "" {
		n = min(n, limit)
	}
	return min((n+objectsPerSeat-1)/objectsPerSeat, flowcontrol.MaxSeats)
}

// serveFlowDump tells what flow control is about, for people.
func (s *Server) serveFlowDump(w http.ResponseWriter, r *http.Request) error {
	dump := map[string]func(io.Writer) error{
		"dump_priority_levels": s.flow.dispatch.DumpLevels,
		"dump_queues":          s.flow.dispatch.DumpQueues,
		"dump_requests": func(w io.Writer) error {
			return s.flow.dispatch.DumpRequests(w, r.URL.Query().Get("includeRequestDetails") != "")
		},
	}[chi.URLParam(r, "dump")]
	if dump == nil {
		return notFoundPath()
	}
	var text bytes.Buffer // the client may take its time, and flow control stands still meanwhile
	if err := dump(&text); err != nil {
		return err
	}
	return s.writeBody(w, output{media: "text/plain; charset=utf-8"}, http.StatusOK, text.Bytes())
}
