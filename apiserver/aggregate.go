package apiserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/aggregation"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/conn"
	"github.com/coxswain-dev/coxswain/apiserver/metrics"
)

// Requests for groups and versions that APIServices assign to other servers are passed on. They pass the same steps as
// a request that is answered here: authentication, impersonation, a deadline, flow control and authorization.

func (s *Server) newAggregation(ctx context.Context) (err error) {
	s.aggregation, err = aggregation.New(ctx, aggregation.Options{Store: s.Store, Registry: s.Registry,
		Objects: s.loopback, Services: s.loopback, Settle: s.settleKinds, ProxyClient: s.ProxyClient,
		Dial: s.Kubelet.Dial, Drain: s.drain, MaxBody: maxBody, Clock: s.Clock, Log: s.Log})
	if s.aggregation != nil {
		s.registry.MustRegister(s.aggregation)
	}
	return err
}

// settleKinds waits until the registry has the kinds of all definitions in memory.
func (s *Server) settleKinds(ctx context.Context) error {
	if s.definitions == nil {
		return nil
	}
	return s.definitions.Settle(ctx)
}

// aggregate passes on the requests that belong to other servers. If there are none, it costs an atomic load.
func (s *Server) aggregate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		service := s.aggregation.At(r.URL.Path)
		if service == nil {
			next.ServeHTTP(w, r)
			return
		}
		if err := s.passOn(w, r, service); err != nil {
			s.writeError(w, r, err)
		}
	})
}

// passOn authorizes a request and passes it on.
func (s *Server) passOn(w http.ResponseWriter, hr *http.Request, service *aggregation.Service) error {
	user := authn.UserFrom(hr.Context())
	a, err := aggregation.Attributes(hr, user)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if hr.URL.RawQuery != "" {
		addSelectors(&a, hr.URL.Query())
	}
	e := exchangeOf(hr.Context())
	e.labels = aggregatedLabels(&a, hr, service)
	if !aggregation.Connects(&a) {
		if err := s.takeSeat(w, hr, &a, 1); err != nil {
			return err
		}
	}
	if err := s.authorizeFor(hr.Context(), a, e.Audit()); err != nil {
		return err
	}
	if a.Verb == "watch" {
		e.ReleaseSeats() // the other server has flow control of its own
		leave, err := e.CountWatch(hr.Context())
		if err != nil {
			return err
		}
		defer leave()
		s.metrics.Open(e.labels, 1)
		defer s.metrics.Open(e.labels, -1)
	}
	s.passOnTo(w, &aggregation.Request{Request: hr, User: user, Streams: aggregation.Streams(&a),
		AuditID:  e.Audit().ID(),
		Annotate: e.Audit().Annotate,
		Fail:     func(err error) { s.failAggregated(w, hr, err) },
		Switched: func() { e.Answered(http.StatusSwitchingProtocols) },
	}, service)
	return nil
}

// passDocument passes on a request for an OpenAPI document that only the other server has.
func (s *Server) passDocument(w http.ResponseWriter, r *http.Request, service *aggregation.Service) {
	s.passOnTo(w, &aggregation.Request{Request: r, User: authn.UserFrom(r.Context()),
		Annotate: exchangeOf(r.Context()).Audit().Annotate, Fail: func(err error) { s.failAggregated(w, r, err) },
		Switched: func() {}}, service)
}

// passOnTo passes a request on. A stream ends if its client does not read it.
func (s *Server) passOnTo(w http.ResponseWriter, r *aggregation.Request, service *aggregation.Service) {
	if !r.Streams {
		s.aggregation.Pass(w, r, service)
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // see limitBody
	out := conn.NewTimedWriter(w, s.RequestTimeout)
	defer out.Stop()
	s.aggregation.Pass(out, r, service)
}

// failAggregated answers with an error instead of the other server's response.
func (s *Server) failAggregated(w http.ResponseWriter, r *http.Request, err error) {
	var refusal *aggregation.Refusal
	if !errors.As(err, &refusal) || exchangeOf(r.Context()).Code() != 0 {
		s.writeError(w, r, err)
		return
	}
	http.Error(w, refusal.Text, refusal.Code)
}

// aggregatedLabels returns the labels of a request that is passed on. They name no resource: this server does not know
// the other server's resources, and clients could invent them.
func aggregatedLabels(a *authz.Attributes, r *http.Request, service *aggregation.Service) metrics.Request {
	labels := metrics.Request{Verb: metrics.Method(r.Method), Group: service.Group, Version: service.Version}
	switch {
	case a.Path != "":
		return labels
	case aggregation.Connects(a):
		labels.Verb = "CONNECT"
	case a.Verb == "list", a.Verb == "watch", a.Verb == "deletecollection":
		labels.Verb = metrics.Verb(a.Verb)
	}
	switch labels.Scope = "cluster"; {
	case a.Name != "" || a.Verb == "create":
		labels.Scope = "resource"
	case a.Namespace != "":
		labels.Scope = "namespace"
	}
	return labels
}

// Aggregated returns the other server that a path belongs to, nil if it is this server's own.
func (s *Server) Aggregated(path string) *aggregation.Service { return s.aggregation.At(path) }
