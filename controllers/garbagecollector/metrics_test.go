package garbagecollector_test

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

// brokenDiscovery fails the first requests for discovery.
type brokenDiscovery struct {
	left *atomic.Int64
	next http.RoundTripper
}

// WrappedRoundTripper lets client-go find the transport below, to close its idle connections.
func (b brokenDiscovery) WrappedRoundTripper() http.RoundTripper { return b.next }

// RoundTrip implements http.RoundTripper.
func (b brokenDiscovery) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.URL.Path, "/api") && strings.Count(r.URL.Path, "/") == 1 && b.left.Add(-1) >= 0 {
		return nil, errors.New("discovery is broken")
	}
	return b.next.RoundTrip(r)
}

func TestGarbageCollector_CountsFailedDiscovery(t *testing.T) {
	t.Parallel()
	c := controllertest.NewBare(t)
	left := &atomic.Int64{}
	left.Store(1)
	c.Wrap = func(next http.RoundTripper) http.RoundTripper { return brokenDiscovery{left, next} }
	c.StartControllers(controllers.Options{Controllers: []string{"garbagecollector"}})
	c.AwaitMetric(1, "garbagecollector_controller_resources_sync_error_total")
}
