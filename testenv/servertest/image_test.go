package servertest_test

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/memory"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// filled returns a server on a backend in memory with 1,000 ConfigMaps.
func filled(b *testing.B) (*memory.Backend, *storage.Store, *servertest.Server) {
	b.Helper()
	backend := servertest.Backend(b).(*memory.Backend)
	store := servertest.Store(b, backend, storage.Options{})
	server := servertest.Start(b, apiserver.Options{Store: store})
	client := server.Client(b)
	for i := range 1000 {
		_, err := client.CoreV1().ConfigMaps("default").Create(b.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)},
			Data:       map[string]string{"text": strings.Repeat("x", 500)}}, metav1.CreateOptions{})
		require.NoError(b, err)
	}
	return backend, store, server
}

// BenchmarkReset restores 1,000 objects, half of them changed, until the server serves them.
func BenchmarkReset(b *testing.B) {
	backend, store, server := filled(b)
	image, err := backend.Save(b.Context())
	require.NoError(b, err)
	client := server.Client(b).CoreV1().ConfigMaps("default")
	for b.Loop() {
		b.StopTimer()
		for i := range 500 {
			_, err := client.Update(b.Context(), &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", 2*i)}}, metav1.UpdateOptions{})
			require.NoError(b, err)
		}
		b.StartTimer()
		revision, err := backend.Restore(b.Context(), image)
		require.NoError(b, err)
		for store.Frontier() < revision {
			_, err = store.Revision(b.Context())
			require.NoError(b, err)
		}
	}
}

// BenchmarkFork starts another server from a state of 1,000 objects, until it serves them.
func BenchmarkFork(b *testing.B) {
	backend, _, _ := filled(b)
	image, err := backend.Save(b.Context())
	require.NoError(b, err)
	for b.Loop() {
		fork := memory.New(memory.Options{Image: image})
		b.Cleanup(func() { require.NoError(b, fork.Close()) })
		store := servertest.Store(b, fork, storage.Options{})
		servertest.Start(b, apiserver.Options{Store: store})
		require.GreaterOrEqual(b, store.Collection("core/configmaps", storage.CollectionOptions{}).Count(), 1000)
	}
}

// A watch must cost net/http's goroutine for the stream, and no other.
func TestStart_AnIdleServerHasFewGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	server := servertest.Start(t, apiserver.Options{})
	idle := func() int { return steady(t) - before }
	const limit = 40
	alone := idle()
	require.LessOrEqual(t, alone, limit)

	credentials, err := rest.TLSConfigFor(server.Config)
	require.NoError(t, err)
	connection := &http.Transport{TLSClientConfig: credentials, ForceAttemptHTTP2: true}
	defer connection.CloseIdleConnections()
	const watches = 100
	for i := range watches {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			server.Config.Host+"/api/v1/namespaces?watch=true", nil)
		require.NoError(t, err)
		watching, err := connection.RoundTrip(request)
		require.NoError(t, err)
		defer watching.Body.Close()
		require.Equal(t, http.StatusOK, watching.StatusCode, i)
		_, err = io.ReadFull(watching.Body, make([]byte, 1))
		require.NoError(t, err)
	}
	// A stream is one goroutine on either side; some more are the connection's.
	require.LessOrEqual(t, idle(), alone+2*watches+10)
}

// steady returns the number of goroutines when it no longer decreases.
func steady(t *testing.T) int {
	t.Helper()
	now, looks := runtime.NumGoroutine(), 0
	require.Eventually(t, func() bool {
		if n := runtime.NumGoroutine() - 1; n < now { // one is the condition's own
			now, looks = n, 0
		}
		looks++
		return looks > 20
	}, time.Minute, 10*time.Millisecond)
	return now
}
