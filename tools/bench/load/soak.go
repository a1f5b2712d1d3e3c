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

// podsOnANode is the number of pods on a node in soak. It is small, so that there are many nodes for the watchers: a
// kubelet watches its own pods only.
const podsOnANode = 10

// soak keeps watches open and changes pods for Options.Duration, and samples the server's memory meanwhile.
// Options.Wide watchers watch all pods, as controllers do; the others watch one node's pods, as kubelets do. It fails
// if a watch ends, if a watcher misses an event, or if it receives too many events.
//
// The Nodes do not exist. The workload needs an API server without controllers, since the garbage collector of pods
// would delete pods on such Nodes.
func soak(ctx context.Context, s *Session) (Result, error) {
	pods := &soakPods{namespace: strings.TrimSuffix(s.standing, "-standing") + "-soak"}
	pods.path = podsPath(pods.namespace)
	pods.changed = make([]atomic.Int64, max(1, s.options.Objects/podsOnANode))
	if err := s.makeNamespaces(ctx, pods.namespace); err != nil {
		return Result{}, err
	}
	template := newPod(pods.namespace)
	if err := s.makeObjects(ctx, podsPath(pods.namespace), 0, s.options.Objects, func(n int) []byte {
		return withNode(pods.node(n), template.named(podName(n), n))
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
		fmt.Sprintf("%d watchers, %d of all pods; %d changes; no watch ended, no event was missed or sent twice",
			len(watchers), s.options.Wide, pods.all.Load()))
	return r, err
}

// soakPods are the pods of soak.
type soakPods struct {
	namespace, path string
	all             atomic.Int64   // number of changes
	changed         []atomic.Int64 // number of changes of each node's pods
}

func (p *soakPods) node(n int) string { return fmt.Sprintf("node-%05d", n%len(p.changed)) }

// soakWatcher is one watcher.
type soakWatcher struct {
	*stream
	node int          // negative for all nodes
	got  atomic.Int64 // number of received events
}

// due returns the number of events that the watcher should have received.
func (w *soakWatcher) due(p *soakPods) int64 {
	if w.node < 0 {
		return p.all.Load()
	}
	return p.changed[w.node].Load()
}

// openSoak opens the watches. They are closed when ctx ends.
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

// soakPatience is how long a watcher may take to receive the last event.
const soakPatience = time.Minute

// awaitSoak waits until every watcher has received all its events.
func awaitSoak(ctx context.Context, pods *soakPods, watchers []*soakWatcher) error {
	ctx, cancel := context.WithTimeout(ctx, soakPatience)
	defer cancel()
	for i, w := range watchers {
		for w.got.Load() < w.due(pods) {
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("watcher %d received %d events of %d: %w", i, w.got.Load(),
					w.due(pods), ctx.Err())
			}
		}
	}
	for i, w := range watchers {
		if got, due := w.got.Load(), w.due(pods); got != due {
			return fmt.Errorf("watcher %d received %d events for %d changes", i, got, due)
		}
	}
	return nil
}

// memorySamples is how many samples of the server's memory soak takes.
const memorySamples = 10

// memory samples a target's memory in a goroutine of its own until stop is called.
type memory struct {
	done, ended chan struct{}
	resident    []string
	anonymous   []string
	err         error
}

func newMemory(t *Target, every time.Duration) *memory {
	m := &memory{done: make(chan struct{}), ended: make(chan struct{})}
	sample := func() {
		c, err := t.cost()
		m.err = errors.Join(m.err, err)
		m.resident = append(m.resident, fmt.Sprint(c.resident>>20))
		m.anonymous = append(m.anonymous, fmt.Sprint(c.anonymous>>20))
	}
	sample()
	go func() {
		defer close(m.ended)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				sample()
			case <-m.done:
				return
			}
		}
	}()
	if len(t.Processes) == 0 {
		m.err = errors.New("the server's process IDs are not set")
	}
	return m
}

// stop stops the sampling and returns the samples, in MiB.
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
