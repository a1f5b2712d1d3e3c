package resourcemetrics_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/apiserver/resourcemetrics"
	"github.com/coxswain-dev/coxswain/storage"
)

// agents respond with a summary each, by the nodes' names, and count the requests.
type agents struct {
	mu        sync.Mutex
	summaries map[string]string
	requests  map[string]int
}

func (a *agents) AskAgent(_ context.Context, node, path string) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests[node]++
	summary, up := a.summaries[node]
	if !up || path != "/stats/summary?only_cpu_and_memory=true" {
		return nil, errors.New("connection refused")
	}
	code := http.StatusOK
	if summary == "" {
		code = http.StatusInternalServerError
	}
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(summary))}, nil
}

// objects are stored objects, in place of a collection.
type objects []*storage.Object

func (s objects) Get(_ context.Context, namespace, name string, _ storage.At) (*storage.Object, error) {
	for _, o := range s {
		if o.Key.Namespace == namespace && o.Key.Name == name {
			return o, nil
		}
	}
	return nil, storage.ErrNotFound
}

func (s objects) List(_ context.Context, r storage.ListRequest) (*storage.List, error) {
	l := &storage.List{Revision: 7}
	for _, o := range s {
		if r.Scope.Namespace == "" || o.Key.Namespace == r.Scope.Namespace {
			l.Items = append(l.Items, o)
		}
	}
	return l, nil
}

const used = `"cpu":{"time":"2026-01-02T03:04:05Z","usageNanoCores":%d},"memory":{"workingSetBytes":%d}`

func usage(nanoCores, bytes int) string { return fmt.Sprintf(used, nanoCores, bytes) }

// cluster returns the metrics of five nodes: n1 has all figures, starting none yet, broken responds with an error, odd
// with an invalid document, and down is unreachable.
func cluster() (*agents, *clocktesting.FakePassiveClock, *resourcemetrics.Kind, *resourcemetrics.Kind) {
	a := &agents{requests: map[string]int{}, summaries: map[string]string{
		"n1": `{"node":{` + usage(1_500_000_000, 64<<20) + `},"pods":[{"podRef":{"uid":"u1"},"containers":[
			{"name":"a",` + usage(250_000_000, 1<<20) + `},{"name":"b",` + usage(1, 2<<20) + `},{"name":"starting"}]},
			{"podRef":{"uid":"u2"},"containers":[{"name":"starting"}]}]}`,
		"starting": `{"node":{"cpu":{}},"pods":[]}`,
		"broken":   "",
		"odd":      `{"node":`,
	}}
	node := func(name string) *storage.Object { return &storage.Object{Key: storage.Key{Name: name}} }
	pod := func(namespace, name, uid, node string) *storage.Object {
		return &storage.Object{Key: storage.Key{Namespace: namespace, Name: name}, UID: uid,
			Labels: storage.Labels{{Key: "app", Value: name}}, Fields: []string{"Running", node}}
	}
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC))
	nodes, pods := resourcemetrics.New(resourcemetrics.Options{
		Agents: a, Clock: clock, Log: slog.New(slog.DiscardHandler), NodeName: 1,
		Nodes: objects{node("n1"), node("starting"), node("broken"), node("odd"), node("down")},
		Pods: objects{pod("default", "web", "u1", "n1"), pod("default", "new", "u2", "n1"),
			pod("other", "lost", "u3", "down"), pod("default", "pending", "u4", "")},
	})
	return a, clock, nodes, pods
}

func TestNodes_HaveMetricsIfTheirAgentsRespond(t *testing.T) {
	t.Parallel()
	_, clock, nodes, _ := cluster()
	found, revision, err := nodes.List(t.Context(), storage.Scope{})
	require.NoError(t, err)
	require.EqualValues(t, 7, revision)
	require.Len(t, found, 1)
	n := found[0].(*metricsv1beta1.NodeMetrics)
	require.Equal(t, "n1", n.Name)
	require.Equal(t, clock.Now(), n.CreationTimestamp.Time)
	require.Equal(t, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), n.Timestamp.UTC())
	require.Equal(t, 10*time.Second, n.Window.Duration)
	require.EqualValues(t, 1500, n.Usage.Cpu().MilliValue())
	require.Equal(t, "64Mi", n.Usage.Memory().String())

	one, err := nodes.Get(t.Context(), "", "n1")
	require.NoError(t, err)
	require.Equal(t, "n1", one.GetName())
	for _, name := range []string{"starting", "broken", "odd", "down", "none"} {
		_, err := nodes.Get(t.Context(), "", name)
		require.ErrorIs(t, err, storage.ErrNotFound, name)
	}
}

func TestPods_HaveTheContainersWithKnownUsage(t *testing.T) {
	t.Parallel()
	_, _, _, pods := cluster()
	found, _, err := pods.List(t.Context(), storage.Scope{})
	require.NoError(t, err)
	require.Len(t, found, 1)
	p := found[0].(*metricsv1beta1.PodMetrics)
	require.Equal(t, "default/web", p.Namespace+"/"+p.Name)
	require.Equal(t, map[string]string{"app": "web"}, p.Labels)
	require.Len(t, p.Containers, 2)
	require.Equal(t, "a", p.Containers[0].Name)
	require.EqualValues(t, 250, p.Containers[0].Usage.Cpu().MilliValue())
	require.EqualValues(t, 1<<20, p.Containers[0].Usage.Memory().Value())

	for _, name := range []string{"new", "pending", "none"} {
		_, err := pods.Get(t.Context(), "default", name)
		require.ErrorIs(t, err, storage.ErrNotFound, name)
	}
	empty, _, err := pods.List(t.Context(), storage.Scope{Namespace: "other"})
	require.NoError(t, err)
	require.Empty(t, empty)
}

func TestSamples_AreSharedForSomeSeconds(t *testing.T) {
	t.Parallel()
	a, clock, nodes, pods := cluster()
	ask := func() {
		_, _, err := nodes.List(t.Context(), storage.Scope{})
		require.NoError(t, err)
		_, err = pods.Get(t.Context(), "default", "web")
		require.NoError(t, err)
	}
	ask()
	ask()
	require.Equal(t, map[string]int{"n1": 1, "starting": 1, "broken": 1, "odd": 1, "down": 1}, a.requests,
		"failures hold as well")
	clock.SetTime(clock.Now().Add(10*time.Second + time.Nanosecond))
	ask()
	require.Equal(t, 2, a.requests["n1"])
}

func TestSamples_AreSharedByConcurrentRequests(t *testing.T) {
	t.Parallel()
	a, _, nodes, pods := cluster()
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			_, _, err := nodes.List(t.Context(), storage.Scope{})
			require.NoError(t, err)
			_, _, err = pods.List(t.Context(), storage.Scope{})
			require.NoError(t, err)
		})
	}
	asking.Wait()
	require.Equal(t, 1, a.requests["n1"], "the others wait for the first answer")
}
