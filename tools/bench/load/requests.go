package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// calm is the minimum duration of workloads without requests: a server returns free memory 15 s after a load.
const calm = 20 * time.Second

// idle measures the cost of a server without requests.
func idle(ctx context.Context, s *Session) (Result, error) {
	r, err := s.measure(func() ([]time.Duration, error) {
		select {
		case <-time.After(max(s.options.Duration, calm)):
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	r.Operations = int(r.Elapsed.Seconds())
	return r, err
}

func fill(ctx context.Context, s *Session) (Result, error) {
	missing := s.options.Objects - s.objects
	r, err := s.measure(func() ([]time.Duration, error) { return nil, s.fill(ctx) })
	r.Operations = max(missing, 0)
	return r, err
}

// hold runs idle after it has created the standing pods.
func hold(ctx context.Context, s *Session) (Result, error) {
	if err := s.fill(ctx); err != nil {
		return Result{}, err
	}
	return idle(ctx, s)
}

func create(ctx context.Context, s *Session) (Result, error) {
	template, path := newPod(s.passing), podsPath(s.passing)
	return s.requests(ctx, s.options.Clients, func(c *conn, _ int) error {
		n := int(s.created.Add(1))
		_, err := c.do(http.MethodPost, path, jsonType, template.named(podName(n), n), http.StatusCreated)
		return err
	})
}

func get(ctx context.Context, s *Session) (Result, error) {
	if err := s.fill(ctx); err != nil {
		return Result{}, err
	}
	return s.requests(ctx, s.options.Clients, func(c *conn, _ int) error {
		_, err := c.do(http.MethodGet, s.anyPod(), "", nil, http.StatusOK)
		return err
	})
}

// anyPod returns the path of a random standing pod.
func (s *Session) anyPod() string { return podsPath(s.standing) + "/" + podName(rand.N(s.objects)) }

func list(ctx context.Context, s *Session) (Result, error) {
	if err := s.fill(ctx); err != nil {
		return Result{}, err
	}
	return s.requests(ctx, 1, func(c *conn, _ int) error {
		_, err := c.drop(podsPath(s.standing))
		return err
	})
}

func selected(ctx context.Context, s *Session) (Result, error) {
	if err := s.fill(ctx); err != nil {
		return Result{}, err
	}
	return s.requests(ctx, 1, func(c *conn, _ int) error {
		_, err := c.drop(fmt.Sprintf("%s?labelSelector=part%%3Dp%d", podsPath(s.standing), rand.N(selectable)))
		return err
	})
}

func pages(ctx context.Context, s *Session) (Result, error) {
	if err := s.fill(ctx); err != nil {
		return Result{}, err
	}
	return s.requests(ctx, 1, func(c *conn, _ int) error {
		token := ""
		for {
			body, err := c.do(http.MethodGet, podsPath(s.standing)+"?limit=500&continue="+url.QueryEscape(token), "",
				nil, http.StatusOK)
			if err != nil {
				return err
			}
			if token, err = continueToken(body); err != nil || token == "" {
				return err
			}
		}
	})
}

// continueToken returns the continue token of a list. It does not decode the items.
func continueToken(list []byte) (string, error) {
	var head struct {
		Metadata struct{ Continue string }
		Items    ignored
	}
	err := json.Unmarshal(list, &head)
	return head.Metadata.Continue, err
}

// ignored decodes any JSON and discards it.
type ignored struct{}

func (*ignored) UnmarshalJSON([]byte) error { return nil }

func patchMerge(ctx context.Context, s *Session) (Result, error) { return patch(ctx, s, mergeType) }

func patchStrategic(ctx context.Context, s *Session) (Result, error) {
	return patch(ctx, s, strategicType)
}

func patch(ctx context.Context, s *Session, contentType string) (Result, error) {
	if err := s.fill(ctx); err != nil {
		return Result{}, err
	}
	return s.requests(ctx, s.options.Clients, func(c *conn, _ int) error { return s.patchAny(c, contentType) })
}

func (s *Session) patchAny(c *conn, contentType string) error {
	return turn(c, s.anyPod(), contentType)
}

// turn sets an object's label "turn" to the current time.
func turn(c *conn, path, contentType string) error {
	_, err := c.do(http.MethodPatch, path, contentType, turnPatch(time.Now().UnixNano()), http.StatusOK)
	return err
}

// update gives each client a pod of its own, which the client reads once and then updates with changing labels and
// without the resourceVersion.
func update(ctx context.Context, s *Session) (Result, error) {
	if err := s.fill(ctx); err != nil {
		return Result{}, err
	}
	c, err := s.target.dial(ctx)
	if err != nil {
		return Result{}, err
	}
	defer c.close()
	paths, docs := make([]string, s.options.Clients), make([][]byte, s.options.Clients)
	for i := range docs {
		paths[i] = podsPath(s.standing) + "/" + podName(i%s.objects)
		doc, err := c.do(http.MethodGet, paths[i], "", nil, http.StatusOK)
		if err != nil {
			return Result{}, err
		}
		if docs[i], err = withoutRevision(doc); err != nil {
			return Result{}, err
		}
	}
	return s.requests(ctx, s.options.Clients, func(c *conn, client int) error {
		if !setTurn(docs[client], time.Now().UnixNano()) {
			return errors.New("the pod has lost its label")
		}
		_, err := c.do(http.MethodPut, paths[client], jsonType, docs[client], http.StatusOK)
		return err
	})
}

func withoutRevision(doc []byte) ([]byte, error) {
	var pod map[string]any
	if err := json.Unmarshal(doc, &pod); err != nil {
		return nil, err
	}
	if meta, ok := pod["metadata"].(map[string]any); ok {
		delete(meta, "resourceVersion")
	}
	return json.Marshal(pod)
}

// mixed approximates the requests of a busy cluster.
func mixed(ctx context.Context, s *Session) (Result, error) {
	if err := s.fill(ctx); err != nil {
		return Result{}, err
	}
	template := newPod(s.passing)
	var created, deleted atomic.Int64 // numbers of the last pods with a request
	created.Store(s.created.Load())
	deleted.Store(created.Load())
	var exists [1 << 16]atomic.Bool // by the pod's number: its creation has succeeded
	r, err := s.requests(ctx, s.options.Clients, func(c *conn, _ int) error {
		var err error
		switch dice := rand.N(100); {
		case dice < 70:
			_, err = c.do(http.MethodGet, s.anyPod(), "", nil, http.StatusOK)
		case dice < 80:
			_, err = c.drop(podsPath(s.standing) + "?limit=100")
		case dice < 90:
			err = s.patchAny(c, mergeType)
		case dice < 95:
			n := created.Add(1)
			if _, err = c.do(http.MethodPost, podsPath(s.passing), jsonType, template.named(podName(int(n)), int(n)),
				http.StatusCreated); err == nil {
				exists[n%int64(len(exists))].Store(true)
			}
		default:
			n := deleted.Load() + 1
			if n <= created.Load() && exists[n%int64(len(exists))].Load() && deleted.CompareAndSwap(n-1, n) {
				exists[n%int64(len(exists))].Store(false)
				_, err = c.do(http.MethodDelete, podsPath(s.passing)+"/"+podName(int(n))+"?gracePeriodSeconds=0", "",
					nil, http.StatusOK)
			} else {
				_, err = c.do(http.MethodGet, s.anyPod(), "", nil, http.StatusOK)
			}
		}
		return err
	})
	s.created.Store(created.Load())
	return r, err
}
