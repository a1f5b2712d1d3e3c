package load

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestParseStat_AcceptsAnyProcessName(t *testing.T) {
	t.Parallel()
	// utime 120, stime 30, rss 2500 pages: the fields 14, 15 and 24 of proc_pid_stat(5).
	c, err := parseStat("4711 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 120 30 13 14 15 16 17 18 19 20 2500 22\n")
	require.NoError(t, err)
	require.Equal(t, 1500*time.Millisecond, c.cpu)
	require.Zero(t, c.resident%2500)
	require.NotZero(t, c.resident)
	_, err = parseStat("4711 (a) S 1")
	require.Error(t, err)
	_, err = parseStat("4711 (a) S 1 2 3 4 5 6 7 8 9 10 x 30 13 14 15 16 17 18 19 20 2500 22")
	require.Error(t, err)
}

func TestMedian_ReturnsMedianOfEachFigure(t *testing.T) {
	t.Parallel()
	m := Median([]Result{
		{Workload: "get", Operations: 100, Elapsed: time.Second, P50: 3, P99: 10, CPU: 100 * time.Millisecond,
			Resident: 7},
		{Workload: "get", Operations: 300, Elapsed: time.Second, P50: 1, P99: 30, CPU: 600 * time.Millisecond,
			Resident: 9},
		{Workload: "get", Operations: 200, Elapsed: time.Second, P50: 2, P99: 20, CPU: 600 * time.Millisecond,
			Resident: 8},
	})
	require.Equal(t, 200, m.Operations)
	require.InDelta(t, 200, m.Rate(), 0.001)
	require.Equal(t, 2*time.Millisecond, m.CPUPerOperation())
	require.Equal(t, []int64{2, 20, 8}, []int64{int64(m.P50), int64(m.P99), m.Resident})
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	require.Zero(t, quantile(nil, 0.5))
	sorted := make([]time.Duration, 100)
	for i := range sorted {
		sorted[i] = time.Duration(i + 1)
	}
	require.EqualValues(t, 51, quantile(sorted, 0.5))
	require.EqualValues(t, 100, quantile(sorted, 0.99))
	require.EqualValues(t, 100, quantile(sorted, 1))
}

func TestPodTemplate_MakesPodsOfTwoKilobytes(t *testing.T) {
	t.Parallel()
	doc := newPod("ns").named(podName(7), 1234)
	require.InDelta(t, 2000, len(doc), 300)
	var pod corev1.Pod
	require.NoError(t, json.Unmarshal(doc, &pod))
	require.Equal(t, "pod-000007", pod.Name)
	require.Equal(t, "ns", pod.Namespace)
	require.Equal(t, "p34", pod.Labels["part"])
}

func TestTurn_ChangesInPlace(t *testing.T) {
	t.Parallel()
	doc := newPod("ns").named("a", 1)
	now := time.Now().UnixNano()
	require.True(t, setTurn(doc, now))
	got, ok := turnOf(doc)
	require.True(t, ok)
	require.Equal(t, now, got)
	require.True(t, json.Valid(doc))
	got, ok = turnOf(turnPatch(now))
	require.True(t, ok)
	require.Equal(t, now, got)
	_, ok = turnOf([]byte(`{"turn":"1"}`))
	require.False(t, ok)
	require.False(t, setTurn([]byte(`{}`), 1))
}

func TestListHead_IgnoresItems(t *testing.T) {
	t.Parallel()
	list := []byte(`{"kind":"PodList","metadata":{"resourceVersion":"17","continue":"abc"},"items":[{"a":[1]},2]}`)
	token, err := continueToken(list)
	require.NoError(t, err)
	require.Equal(t, "abc", token)
	revision, err := listRevision(list)
	require.NoError(t, err)
	require.Equal(t, "17", revision)
}

func TestOptions_HaveLimits(t *testing.T) {
	t.Parallel()
	require.NoError(t, DefaultOptions().Check())
	for name, spoil := range map[string]func(*Options){
		"clients": func(o *Options) { o.Clients = 1001 }, "objects": func(o *Options) { o.Objects = 0 },
		"watchers": func(o *Options) { o.Watchers = -1 }, "rate": func(o *Options) { o.Rate = 0 },
		"replicas": func(o *Options) { o.Replicas = 1 << 20 }, "duration": func(o *Options) { o.Duration = time.Hour },
	} {
		o := DefaultOptions()
		spoil(&o)
		require.ErrorContains(t, o.Check(), name)
	}
}
