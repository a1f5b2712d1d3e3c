package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// watch runs many watches of the same pods and changes one pod after the other. A change contains the time of its
// request. The latency of an event starts there, so that it includes the write.
func watch(ctx context.Context, s *Session) (Result, error) {
	if err := s.fill(ctx); err != nil {
		return Result{}, err
	}
	return s.watch(ctx, podsPath(s.standing), func(c *conn) error { return s.patchAny(c, mergeType) })
}

// watch runs many watches of a collection and calls change to change its objects.
func (s *Session) watch(ctx context.Context, path string, change func(c *conn) error) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	streams := make([]*stream, s.options.Watchers)
	revision, err := s.revision(ctx, path)
	if err != nil {
		return Result{}, err
	}
	for i := range streams {
		if streams[i], err = s.openStream(ctx, path, "", revision); err != nil {
			return Result{}, err
		}
		defer streams[i].c.close()
	}
	return s.measure(func() ([]time.Duration, error) {
		sent := max(int(s.options.Duration.Seconds()*float64(s.options.Rate)), 1)
		failures := make(chan error, len(streams)+1)
		var reading sync.WaitGroup
		for _, st := range streams {
			reading.Go(func() {
				if err := st.read(sent); err != nil {
					failures <- err
					cancel() // closes all connections
				}
			})
		}
		if err := s.changes(ctx, sent, change); err != nil {
			failures <- err
			cancel()
		}
		reading.Wait()
		select {
		case err := <-failures:
			return nil, err
		default:
		}
		var all []time.Duration
		for _, st := range streams {
			all = append(all, st.took...)
		}
		slices.Sort(all)
		return all, nil
	})
}

// revision returns the current resourceVersion of a collection.
func (s *Session) revision(ctx context.Context, path string) (string, error) {
	c, err := s.target.dial(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	body, err := c.do(http.MethodGet, path+"?limit=1", "", nil, http.StatusOK)
	if err != nil {
		return "", err
	}
	return listRevision(body)
}

// changes makes count changes at Options.Rate. It uses several connections, so that a slow write does not delay the
// next one.
func (s *Session) changes(ctx context.Context, count int, change func(c *conn) error) error {
	var turns atomic.Int64
	start := time.Now()
	_, err := s.each(ctx, min(s.options.Clients, s.options.Rate), time.Hour, func(c *conn, _ int) error {
		turn := turns.Add(1) - 1
		if turn >= int64(count) {
			return errEnough
		}
		select {
		case <-time.After(time.Until(start.Add(time.Duration(turn) * time.Second / time.Duration(s.options.Rate)))):
		case <-ctx.Done():
			return ctx.Err()
		}
		return change(c)
	})
	return err
}

// stream is one watcher.
type stream struct {
	c    *conn
	in   *bufio.Reader
	took []time.Duration
}

// openStream watches a collection, or only the pods of a node if node is not empty.
func (s *Session) openStream(ctx context.Context, path, node, revision string) (*stream, error) {
	c, err := s.target.dial(ctx)
	if err != nil {
		return nil, err
	}
	path = fmt.Sprintf("%s?watch=true&resourceVersion=%s&timeoutSeconds=3600", path, revision)
	if node != "" {
		path += "&fieldSelector=spec.nodeName%3D" + node
	}
	response, err := c.send(http.MethodGet, path, "", nil)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", path, response.Status)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return &stream{c: c, in: bufio.NewReaderSize(response.Body, 16<<10)}, nil
}

// read reads the given number of events.
func (st *stream) read(events int) error {
	st.took = make([]time.Duration, 0, events)
	for len(st.took) < events {
		if err := st.readOne(); err != nil {
			return fmt.Errorf("after %d of %d events: %w", len(st.took), events, err)
		}
	}
	return nil
}

func (st *stream) readOne() error {
	line, err := st.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	sent, ok := turnOf(line)
	if !ok {
		return errors.New("event without the label: " + string(line))
	}
	st.took = append(st.took, time.Duration(time.Now().UnixNano()-sent))
	return nil
}
