package testenv_test

import (
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/testenv"
)

// startWatched starts a control plane with a client that watches, like an operator that is still running.
func startWatched(t testing.TB, opts ...testenv.Option) (watching watch.Interface, stop func() error) {
	t.Helper()
	config, stop, err := testenv.New(opts...)
	require.NoError(t, err)
	config.WarningHandler = rest.NoWarnings{}
	client := kubernetes.NewForConfigOrDie(config)
	_, err = client.CoreV1().ServiceAccounts("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	watching, err = client.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return watching, stop
}

// TestStop_EndsWatchesInOrder: a client that watches is not reported an error. BenchmarkStop_WithClients measures how
// long such connections keep a server from stopping.
func TestStop_EndsWatchesInOrder(t *testing.T) {
	t.Parallel()
	watching, stop := startWatched(t, testenv.APIServerOnly())
	require.NoError(t, stop())
	for e := range watching.ResultChan() {
		require.NotEqual(t, watch.Error, e.Type, "%v", e.Object)
	}
}

// BenchmarkStop_WithClients must not take much longer than the stop-ms/op of BenchmarkStart: net/http by itself waits
// a second for the clients' connections.
func BenchmarkStop_WithClients(b *testing.B) {
	var stopping time.Duration
	for b.Loop() {
		_, stop := startWatched(b, testenv.APIServerOnly())
		began := time.Now()
		require.NoError(b, stop())
		stopping += time.Since(began)
	}
	b.ReportMetric(float64(stopping.Microseconds())/1000/float64(b.N), "stop-ms/op")
}

// No other test runs meanwhile: the counts are the process's.
func TestStop_KeepsNoMemory(t *testing.T) {
	const (
		rounds, atOnce = 10, 5
		// limit is how many bytes a control plane may leave: twice the size of the client's connection, which net/http
		// closes by a timer. A whole control plane takes 4 MiB.
		limit = 96 << 10
	)
	round := func() {
		var ended sync.WaitGroup
		for range atOnce {
			ended.Go(func() {
				watching, stop := startWatched(t)
				defer watching.Stop()
				require.NoError(t, stop())
			})
		}
		ended.Wait()
	}
	round() // a process does some work only once
	goroutines, before := runtime.NumGoroutine(), liveHeap()
	for range rounds {
		round()
	}
	require.Eventually(t, func() bool {
		return runtime.NumGoroutine() <= goroutines+rounds
	}, time.Minute, 10*time.Millisecond,
		"goroutines that %d control planes left", rounds*atOnce)
	require.Eventually(t, func() bool {
		return liveHeap() < before+rounds*atOnce*limit
	}, 10*time.Second, 100*time.Millisecond,
		"live heap before: %d KiB; %d control planes leave more than %d KiB each", before>>10, rounds*atOnce, limit>>10)
}

// An API server alone leaves fewer bytes than a connection of its clients, after any number of starts.
func TestStop_LeavesNoMemory(t *testing.T) {
	const (
		cycles = 50
		limit  = 8 << 10 // a hundredth of a server's
	)
	cycle := func() {
		config, stop, err := testenv.New(testenv.APIServerOnly())
		require.NoError(t, err)
		credentials, err := rest.TLSConfigFor(config)
		require.NoError(t, err)
		connections := &http.Transport{TLSClientConfig: credentials, ForceAttemptHTTP2: true}
		defer connections.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			config.Host+"/api/v1/namespaces?watch=true", nil)
		require.NoError(t, err)
		watching, err := connections.RoundTrip(request)
		require.NoError(t, err)
		defer watching.Body.Close()
		require.Equal(t, http.StatusOK, watching.StatusCode)
		_, err = watching.Body.Read(make([]byte, 1))
		require.NoError(t, err)
		require.NoError(t, stop())
	}
	goroutines := runtime.NumGoroutine()
	for range 10 { // afterwards the process has made all its singletons, and its pools are full
		cycle()
	}
	before := liveHeap()
	for range cycles {
		cycle()
	}
	require.Eventually(t, func() bool {
		return runtime.NumGoroutine() <= goroutines+1 && // the condition runs in one itself
			liveHeap() < before+cycles*limit
	}, time.Minute, 10*time.Millisecond)
}

func liveHeap() uint64 {
	runtime.GC() // runs cleanups
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The process's own stderr and default logger are replaced, so no other test may run meanwhile.
func TestStart_IsSilent(t *testing.T) {
	read, write, err := os.Pipe()
	require.NoError(t, err)
	stderr, logger := os.Stderr, slog.Default()
	os.Stderr = write
	slog.SetDefault(slog.New(slog.NewTextHandler(write, nil)))
	defer func() {
		os.Stderr = stderr
		slog.SetDefault(logger)
	}()
	printed := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(read)
		printed <- string(all)
	}()
	for range 3 {
		watching, stop := startWatched(t)
		require.NoError(t, stop())
		watching.Stop()
	}
	require.NoError(t, write.Close())
	require.Empty(t, <-printed)
}
