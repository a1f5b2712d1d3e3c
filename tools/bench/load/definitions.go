package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// DefinitionsCost is what definitions cost that nobody uses.
type DefinitionsCost struct {
	Size  int           // of each, in bytes, as it is sent
	Alone time.Duration // from the answer to one's creation until its kind is served; the median
	All   time.Duration // from the first request until all kinds are served
	CPU   time.Duration // of the server meanwhile
	// Heap is how many bytes they keep, Goroutines how many goroutines.
	Heap, Goroutines int64

	Discovery, IndexFirst, Index, GroupFirst, Group time.Duration
	Documents                                       int64 // bytes of the heap that discovery and OpenAPI have added
}

const (
	// Every tenth definition has rules, ten of them.
	// someDescription is the length of descriptions by which a definition has 20 kB.
	someDescription = 130
	// groups is how many groups the definitions are in.
	groups = 100
	// alone is how many definitions are made one after the other.
	alone = 20
)

func groupOf(n int) string { return fmt.Sprintf("g%d.bench.example.com", n%groups) }

func numbered(n int) (group, plural string, crd []byte, err error) {
	group, plural = groupOf(n), fmt.Sprintf("kind%ds", n)
	crd, err = definition(group, plural, fmt.Sprintf("Kind%d", n), someDescription, n%10 == 0)
	return group, plural, crd, err
}

// MeasureDefinitions makes that many definitions, and leaves them there.
func (s *Session) MeasureDefinitions(ctx context.Context, count int) (cost DefinitionsCost, err error) {
	c, err := s.target.dial(ctx)
	if err != nil {
		return cost, err
	}
	defer c.close()
	if err := s.defineAlone(ctx, c, count, &cost); err != nil {
		return cost, err
	}
	heap, goroutines, err := c.memory()
	if err != nil {
		return cost, err
	}
	if err := s.defineAll(ctx, count, &cost); err != nil {
		return cost, err
	}
	heapThen, goroutinesThen, err := c.memory()
	if err != nil {
		return cost, err
	}
	cost.Heap, cost.Goroutines = heapThen-heap, goroutinesThen-goroutines
	if err := c.readDocuments(&cost); err != nil {
		return cost, err
	}
	heap, _, err = c.memory()
	cost.Documents = heap - heapThen
	return cost, err
}

// defineAlone makes definitions one after the other, beyond those of defineAll.
func (s *Session) defineAlone(ctx context.Context, c *conn, count int, cost *DefinitionsCost) error {
	var took []time.Duration
	for n := count; n < count+alone; n++ {
		group, plural, crd, err := numbered(n)
		if err != nil {
			return err
		}
		cost.Size = len(crd)
		if _, err := c.do(http.MethodPost, definitionsPath, jsonType, crd, http.StatusCreated); err != nil {
			return err
		}
		s.definitions = append(s.definitions, plural+"."+group)
		answered := time.Now()
		if err := c.awaitKind(ctx, group, plural); err != nil {
			return err
		}
		took = append(took, time.Since(answered))
	}
	slices.Sort(took)
	cost.Alone = quantile(took, 0.5)
	return nil
}

// defineAll makes definitions as fast as the server takes them.
func (s *Session) defineAll(ctx context.Context, count int, cost *DefinitionsCost) error {
	crds := make([][]byte, count)
	for n := range crds {
		group, plural, crd, err := numbered(n)
		if err != nil {
			return err
		}
		crds[n] = crd
		s.definitions = append(s.definitions, plural+"."+group)
	}
	all := func(do func(c *conn, n int) error) error {
		next := atomic.Int64{}
		_, err := s.each(ctx, s.options.Clients, time.Hour, func(c *conn, _ int) error {
			n := int(next.Add(1)) - 1
			if n >= count {
				return errEnough
			}
			return do(c, n)
		})
		return err
	}
	r, err := s.measure(func() ([]time.Duration, error) {
		err := all(func(c *conn, n int) error {
			_, err := c.do(http.MethodPost, definitionsPath, jsonType, crds[n], http.StatusCreated)
			return err
		})
		return nil, errors.Join(err, all(func(c *conn, n int) error {
			return c.awaitKind(ctx, groupOf(n), fmt.Sprintf("kind%ds", n))
		}))
	})
	cost.All, cost.CPU = r.Elapsed, r.CPU
	return err
}

// readDocuments reads discovery and OpenAPI, of one group alone.
func (c *conn) readDocuments(cost *DefinitionsCost) error {
	c.header = bytes.Replace(c.header, []byte("Accept: application/json"),
		[]byte("Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"), 1)
	_, err := c.timed("/apis", &cost.Discovery)
	c.header = bytes.Replace(c.header, []byte(";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"), nil, 1)
	if err == nil {
		cost.IndexFirst, err = c.timed("/openapi/v3", &cost.Index)
	}
	if err == nil {
		cost.GroupFirst, err = c.timed("/openapi/v3/apis/"+groupOf(0)+"/v1", &cost.Group)
	}
	return err
}

// timed gets a document several times: the first time, and the median of the other times.
func (c *conn) timed(path string, again *time.Duration) (first time.Duration, err error) {
	var took []time.Duration
	for range 10 {
		began := time.Now()
		if _, err := c.do(http.MethodGet, path, "", nil, http.StatusOK); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	first = took[0]
	slices.Sort(took[1:])
	*again = quantile(took[1:], 0.5)
	return first, nil
}

// memory is the server's heap after a garbage collection, in bytes, and the number of its goroutines.
func (c *conn) memory() (heap, goroutines int64, err error) {
	for range 2 { // the second collection frees the objects whose finalizers the first one has run
		body, err := c.do(http.MethodGet, "/debug/pprof/heap?gc=1&debug=1", "", nil, http.StatusOK)
		if err != nil {
			return 0, 0, err
		}
		if heap, err = numberAfter(body, "# HeapAlloc = "); err != nil {
			return 0, 0, err
		}
	}
	body, err := c.do(http.MethodGet, "/debug/pprof/goroutine?debug=1", "", nil, http.StatusOK)
	if err != nil {
		return 0, 0, err
	}
	goroutines, err = numberAfter(body, "total ")
	return heap, goroutines, err
}

// numberAfter finds a number in a text.
func numberAfter(text []byte, before string) (int64, error) {
	_, rest, _ := bytes.Cut(text, []byte(before))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return strconv.ParseInt(string(line), 10, 64)
}
