package apiserver_test

import (
	"context"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

func TestSettle_ReturnsWhenDefinitionsAreEstablished(t *testing.T) {
	t.Parallel()
	server := servertest.Start(t, apiserver.Options{})
	s := connect(t, server.Config)
	s.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", m{"metadata": m{"name": "valves.example.org"},
		"spec": m{"group": "example.org", "scope": "Namespaced", "names": m{"plural": "valves", "kind": "Valve"},
			"versions": []m{{"name": "v1", "served": true, "storage": true, "schema": m{"openAPIV3Schema": m{
				"type": "object"}}}}}})
	require.NoError(t, server.Settle(t.Context(), nil))
	s.get("/apis/example.org/v1/namespaces/default/valves").ok(http.StatusOK)
}

// TestSettle_WaitsForParts runs a part that handles each of three changes, one after the other, and makes the next.
func TestSettle_WaitsForParts(t *testing.T) {
	t.Parallel()
	server := servertest.Start(t, apiserver.Options{})
	s := connect(t, server.Config)
	var seen, made atomic.Int64
	parts := &quiescence.Group{}
	parts.Add(func(revision int64) string {
		if seen.Load() < revision {
			return "the part has not seen all"
		}
		return ""
	})
	client := server.Client(t)
	changes, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(),
		metav1.ListOptions{AllowWatchBookmarks: true})
	require.NoError(t, err)
	defer changes.Stop()
	go func() {
		for change := range changes.ResultChan() {
			if change.Type == watch.Error { // the watch ends with the test
				return
			}
			object, err := meta.Accessor(change.Object)
			if !assert.NoError(t, err) {
				return
			}
			revision, err := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
			assert.NoError(t, err)
			if made.Load() < 3 {
				made.Add(1)
				s.create(configMaps, m{"metadata": m{"generateName": "follows-"}})
			}
			seen.Store(revision)
		}
	}()
	require.NoError(t, server.Settle(t.Context(), parts))
	require.EqualValues(t, 3, made.Load())

	parts.Add(func(int64) string { return "a worker never ends" })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err = server.Settle(ctx, parts)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "a worker never ends")
}
