package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// podsOnANode is how many pods of soak a node has: as many as there are watchers must be
// nodes, for a kubelet watches its own.
const podsOnANode = 10

// soak keeps up watches and changes for Options.Duration, and looks at the server's memory
// all the while. Options.Wide watchers watch all the pods, as controllers do; the others
// watch one node's, as kubelets do. It fails when a watch ends, or when a watcher is not told
// of a change that concerns it, or of more changes than there were.
//
// The nodes do not exist, and a controller that collects the pods of such would end it: it is
// for an API server by itself.
func soak(ctx context.Context, s *Session) (Result, error) {
	pods := &soakPods{namespace: strings.TrimSuffix(s.standing, "-standing") + "-soak"}
	pods.path = podsPath(pods.namespace)
	pods.changed = make([]atomic.Int64, max(1, s.options.Objects/podsOnANode))
	if err := s.makeNamespaces(ctx, pods.namespace); err != nil {
		return Result{}, err
	}
	template := newPod(pods.namespace)
	if err := s.makeObjects(ctx, podsPath(pods.namespace), 0, s.options.Objects, func(n int) []byte {
		return on(pods.node(n), template.named(podName(n), n))
	}); err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchers, err := s.openSoak(ctx, pods)
	if err != nil {
		return Result{}, err
	}
	memory := newMemory(s.target, s.options.Duration/memorySamples)
	r, err := s.measure(func() ([]time.Duration, error) {
		return s.runSoak(ctx, cancel, pods, watchers)
	})
	r.Notes = append(memory.stop(),
		fmt.Sprintf("%d watchers, %d of all the pods; %d changes; none dropped, no event missing or told twice",
			len(watchers), s.options.Wide, pods.all.Load()))
	return r, err
}

// soakPods are the pods, and how many changes there were of those of each node.
type soakPods struct {
	namespace, path string
	all             atomic.Int64
	changed         []atomic.Int64
}

func (p *soakPods) node(n int) string { return fmt.Sprintf("node-%05d", n%len(p.changed)) }

// soakWatcher is one watcher. node is negative when it watches all.
type soakWatcher struct {
	*stream
	node int
	got  atomic.Int64
}

func (w *soakWatcher) due(p *soakPods) int64 {
	if w.node < 0 {
		return p.all.Load()
	}
	return p.changed[w.node].Load()
}

// openSoak opens the watches, which are closed when ctx ends.
func (s *Session) openSoak(ctx context.Context, pods *soakPods) ([]*soakWatcher, error) {
	revision, err := s.revision(ctx, podsPath(pods.namespace))
	if err != nil {
		return nil, err
	}
	watchers := make([]*soakWatcher, s.options.Watchers)
	for i := range watchers {
		w := &soakWatcher{node: -1}
		node := ""
		if i >= s.options.Wide {
			w.node = i % len(pods.changed)
			node = pods.node(w.node)
		}
		if w.stream, err = s.openStream(ctx, podsPath(pods.namespace), node, revision); err != nil {
			return nil, err
		}
		watchers[i] = w
	}
	return watchers, nil
}

func (s *Session) runSoak(ctx context.Context, cancel func(), pods *soakPods, watchers []*soakWatcher) (
	[]time.Duration, error) {
	failures := make(chan error, len(watchers)+1)
	var reading sync.WaitGroup
	for i, w := range watchers {
		reading.Go(func() {
			for {
				if err := w.readOne(); err != nil {
					if ctx.Err() == nil {
						failures <- fmt.Errorf("watcher %d ended after %d events: %w", i, w.got.Load(), err)
						cancel()
					}
					return
				}
				w.got.Add(1)
			}
		})
	}
	count := max(int(s.options.Duration.Seconds()*float64(s.options.Rate)), 1)
	err := s.changes(ctx, count, func(c *conn) error {
		n := rand.N(s.options.Objects)
		pods.all.Add(1)
		pods.changed[n%len(pods.changed)].Add(1)
		return turn(c, pods.path+"/"+podName(n), mergeType)
	})
	if err == nil {
		err = awaitSoak(ctx, pods, watchers)
	}
	cancel()
	reading.Wait()
	select {
	case first := <-failures:
		return nil, first
	default:
	}
	var all []time.Duration
	for _, w := range watchers {
		all = append(all, w.took...)
	}
	slices.Sort(all)
	return all, err
}

// soakPatience is how long a watcher may take to be told of the last change.
const soakPatience = time.Minute

// awaitSoak waits until every watcher has been told of every change that concerns it.
func awaitSoak(ctx context.Context, pods *soakPods, watchers []*soakWatcher) error {
	ctx, cancel := context.WithTimeout(ctx, soakPatience)
	defer cancel()
	for i, w := range watchers {
		for w.got.Load() < w.due(pods) {
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("watcher %d was told of %d changes of %d: %w", i, w.got.Load(),
					w.due(pods), ctx.Err())
			}
		}
	}
	for i, w := range watchers {
		if got, due := w.got.Load(), w.due(pods); got != due {
			return fmt.Errorf("watcher %d was told of %d changes, and there were %d", i, got, due)
		}
	}
	return nil
}

// memorySamples is how often a soak looks at the server's memory.
const memorySamples = 10

// memory is looked at in a goroutine of its own until it is stopped.
type memory struct {
	done, ended chan struct{}
	resident    []string
	anonymous   []string
	err         error
}

func newMemory(t *Target, every time.Duration) *memory {
	m := &memory{done: make(chan struct{}), ended: make(chan struct{})}
	look := func() {
		c, err := t.cost()
		m.err = errors.Join(m.err, err)
		m.resident = append(m.resident, fmt.Sprint(c.resident>>20))
		m.anonymous = append(m.anonymous, fmt.Sprint(c.anonymous>>20))
	}
	look()
	go func() {
		defer close(m.ended)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				look()
			case <-m.done:
				return
			}
		}
	}()
	if len(t.Processes) == 0 {
		m.err = errors.New("the server's processes were not named")
	}
	return m
}

// stop returns what was seen, in MiB.
func (m *memory) stop() []string {
	close(m.done)
	<-m.ended
	if m.err != nil {
		return []string{"memory: " + m.err.Error()}
	}
	return []string{
		"resident MiB over time:  " + strings.Join(m.resident, " "),
		"anonymous MiB over time: " + strings.Join(m.anonymous, " "),
	}
}
