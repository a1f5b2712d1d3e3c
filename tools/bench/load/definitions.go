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

// DefinitionsCost is the cost of unused definitions.
type DefinitionsCost struct {
	Size  int           // request size of each, in bytes
	Alone time.Duration // median time from the response to a creation until the kind is served
	All   time.Duration // from the first request until all kinds are served
	CPU   time.Duration // CPU time of the server during All
	// Heap is the memory in bytes that they occupy, Goroutines the number of additional goroutines.
	Heap, Goroutines int64

	Discovery, IndexFirst, Index, GroupFirst, Group time.Duration
	Documents                                       int64 // heap that discovery and OpenAPI add, in bytes
}

const (
	// shortDescription is the length of a field's description that makes a definition 20 kB large.
	shortDescription = 130
	// groups is the number of the definitions' groups.
	groups = 100
	// alone is how many definitions are created one after the other.
	alone = 20
)

func groupOf(n int) string { return fmt.Sprintf("g%d.bench.example.com", n%groups) }

// numbered returns the definition with a number. Every tenth definition has CEL rules, ten of them.
func numbered(n int) (group, plural string, crd []byte, err error) {
	group, plural = groupOf(n), fmt.Sprintf("kind%ds", n)
	crd, err = definition(group, plural, fmt.Sprintf("Kind%d", n), shortDescription, n%10 == 0)
	return group, plural, crd, err
}

// MeasureDefinitions creates count definitions and some more. Close removes them.
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
	heapAfter, goroutinesAfter, err := c.memory()
	if err != nil {
		return cost, err
	}
	cost.Heap, cost.Goroutines = heapAfter-heap, goroutinesAfter-goroutines
	if err := c.readDocuments(&cost); err != nil {
		return cost, err
	}
	heap, _, err = c.memory()
	cost.Documents = heap - heapAfter
	return cost, err
}

// defineAlone creates definitions one after the other, with numbers that defineAll does not use.
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
		response := time.Now()
		if err := c.awaitKind(ctx, group, plural); err != nil {
			return err
		}
		took = append(took, time.Since(response))
	}
	slices.Sort(took)
	cost.Alone = quantile(took, 0.5)
	return nil
}

// defineAll creates definitions as fast as the server accepts them.
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

// readDocuments reads discovery, the index of OpenAPI, and the OpenAPI document of one group.
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

// timed gets a document several times. It returns the time of the first request, and stores the median of the others in
// again.
func (c *conn) timed(path string, again *time.Duration) (first time.Duration, err error) {
	var took []time.Duration
	for range 10 {
		start := time.Now()
		if _, err := c.do(http.MethodGet, path, "", nil, http.StatusOK); err != nil {
			return 0, err
		}
		took = append(took, time.Since(start))
	}
	first = took[0]
	slices.Sort(took[1:])
	*again = quantile(took[1:], 0.5)
	return first, nil
}

// memory returns the server's heap after a garbage collection, in bytes, and the number of its goroutines.
func (c *conn) memory() (heap, goroutines int64, err error) {
	for range 2 { // the first collection runs finalizers, and the second one frees their objects
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

// numberAfter parses the number that follows a prefix in a text, up to the end of the line.
func numberAfter(text []byte, prefix string) (int64, error) {
	_, rest, _ := bytes.Cut(text, []byte(prefix))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return strconv.ParseInt(string(line), 10, 64)
}
