package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Session is a series of workloads on one target. It must be closed. It is not safe for concurrent use.
type Session struct {
	target  *Target
	options Options
	// standing is the namespace of permanent pods, passing the namespace of temporary ones, so that create does not
	// make lists longer.
	standing, passing string
	namespaces        []string     // namespaces to delete
	objects           int          // number of pods in standing
	created           atomic.Int64 // number of objects created in passing, for their names
	definitions       []string     // names of definitions to delete
	varieties         []*variety   // the varieties of compareReads
}

// NewSession creates two namespaces on the target.
func NewSession(ctx context.Context, t *Target, o Options) (*Session, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	run := fmt.Sprintf("bench-%06x", rand.N(1<<24))
	s := &Session{target: t, options: o, standing: run + "-standing", passing: run + "-passing"}
	return s, s.makeNamespaces(ctx, s.standing, s.passing)
}

func (s *Session) makeNamespaces(ctx context.Context, names ...string) error {
	c, err := s.target.dial(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	for _, name := range names {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name)
		if _, err := c.do(http.MethodPost, "/api/v1/namespaces", jsonType, []byte(body),
			http.StatusCreated); err != nil {
			return err
		}
		s.namespaces = append(s.namespaces, name)
	}
	return nil
}

// SetObjects changes Options.Objects for further workloads. It does not reduce the number of existing pods.
func (s *Session) SetObjects(n int) { s.options.Objects = n }

// Close removes the session's objects.
func (s *Session) Close(ctx context.Context) error {
	c, err := s.target.dial(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	var errs []error
	for _, name := range s.namespaces {
		// An API server without controllers does not empty a namespace by itself.
		for _, v := range []*variety{pods(), configs(), customs()} {
			if v.path(name) == certificatesPath(name) && len(s.definitions) == 0 {
				continue
			}
			_, err := c.do(http.MethodDelete, v.path(name)+"?gracePeriodSeconds=0", "", nil, http.StatusOK)
			errs = append(errs, err)
		}
		_, err := c.do(http.MethodDelete, "/api/v1/namespaces/"+name, "", nil, http.StatusOK)
		errs = append(errs, err)
	}
	for _, name := range s.definitions {
		_, err := c.do(http.MethodDelete, definitionsPath+"/"+name, "", nil, http.StatusOK)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// fill creates standing pods until there are Options.Objects.
func (s *Session) fill(ctx context.Context) error {
	template := newPod(s.standing)
	err := s.makeObjects(ctx, podsPath(s.standing), s.objects, s.options.Objects, func(n int) []byte {
		return template.named(podName(n), n)
	})
	if err == nil {
		s.objects = max(s.objects, s.options.Objects)
	}
	return err
}

// makeObjects creates objects with the numbers from first up to, but not including, end.
func (s *Session) makeObjects(ctx context.Context, path string, first, end int, object func(n int) []byte) error {
	next := atomic.Int64{}
	next.Store(int64(first))
	_, err := s.each(ctx, s.options.Clients, time.Hour, func(c *conn, _ int) error {
		n := int(next.Add(1)) - 1
		if n >= end {
			return errEnough
		}
		_, err := c.do(http.MethodPost, path, jsonType, object(n), http.StatusCreated)
		return err
	})
	return err
}

// errEnough stops a client of each before the time is over.
var errEnough = errors.New("enough")

// each runs operations on one connection per client, as fast as the server responds, for the duration d or until they
// return errEnough. It stops at the first other error and returns it. It returns the latencies in ascending order.
func (s *Session) each(ctx context.Context, clients int, d time.Duration, operation func(c *conn, client int) error) (
	[]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conns := make([]*conn, clients)
	for i := range conns {
		c, err := s.target.dial(ctx)
		if err != nil {
			return nil, err
		}
		defer c.close()
		conns[i] = c
	}
	took := make([][]time.Duration, clients)
	end := time.Now().Add(d)
	var running sync.WaitGroup
	for i, c := range conns {
		running.Go(func() {
			for now := time.Now(); now.Before(end); {
				if err := operation(c, i); err != nil {
					if !errors.Is(err, errEnough) {
						cancel(err)
					}
					return
				}
				start := now
				now = time.Now()
				took[i] = append(took[i], now.Sub(start))
			}
		})
	}
	running.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	return all, context.Cause(ctx)
}

// requests runs a workload that consists of one operation.
func (s *Session) requests(ctx context.Context, clients int, operation func(c *conn, client int) error) (
	Result, error) {
	return s.measure(func() ([]time.Duration, error) {
		return s.each(ctx, clients, s.options.Duration, operation)
	})
}

// measure returns the server's cost while f runs. f returns a latency for each operation.
func (s *Session) measure(f func() (latencies []time.Duration, err error)) (Result, error) {
	before, err := s.target.cost()
	if err != nil {
		return Result{}, err
	}
	start := time.Now()
	latencies, err := f()
	elapsed := time.Since(start)
	if err != nil {
		return Result{}, err
	}
	after, err := s.target.cost()
	if err != nil {
		return Result{}, err
	}
	return Result{
		Operations: len(latencies), Elapsed: elapsed,
		P50: quantile(latencies, 0.5), P99: quantile(latencies, 0.99),
		CPU: after.cpu - before.cpu, Resident: after.resident,
	}, nil
}

// quantile returns a quantile of sorted latencies.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
