package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

const (
	// A proxy is unhealthy if a change waits for so long.
	healthTimeout = time.Minute
	// leavingTaint is what the cluster autoscaler puts on a Node that it is about to remove (KEP-3836).
	leavingTaint = "ToBeDeletedByClusterAutoscaler"
)

// Health is how a proxy is. A nil Health is of no use; its methods are safe for concurrent use.
type Health struct {
	clock          clock.PassiveClock
	healthz, livez *prometheus.CounterVec

	mu         sync.Mutex
	pending    time.Time // since when a change waits; zero if none does
	updated    time.Time // the last commit
	ineligible bool
}

// NewHealth returns the health of a proxy that has not begun, which is good. The clock is the proxy's.
func NewHealth(c clock.PassiveClock) *Health {
	return &Health{clock: c, healthz: answers("healthz"), livez: answers("livez")}
}

func answers(path string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_proxy_" + path + "_total",
		Help: "Cumulative proxy " + path + " HTTP status"}, []string{"code"})
}

// queued notes that a change waits.
func (h *Health) queued() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pending.IsZero() {
		h.pending = h.clock.Now()
	}
}

// committed notes that all changes before since are in the kernel.
func (h *Health) committed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending, h.updated = time.Time{}, h.clock.Now()
}

// setNodes notes whether load balancers may send to these Nodes: not if all of them are about to go.
func (h *Health) setNodes(nodes []*corev1.Node) {
	leaving := len(nodes) > 0
	for _, n := range nodes {
		goes := n.DeletionTimestamp != nil
		for _, t := range n.Spec.Taints {
			goes = goes || t.Key == leavingTaint
		}
		leaving = leaving && goes
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ineligible = leaving
}

// Healthy reports whether no change has waited for a minute. The lot of the Nodes has no part in it.
func (h *Health) Healthy() bool {
	healthy, _, _ := h.state()
	return healthy
}

func (h *Health) state() (healthy, eligible bool, updated time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	healthy = h.pending.IsZero() || h.clock.Since(h.pending) < healthTimeout
	return healthy, !h.ineligible, h.updated
}

// ServeHTTP answers /healthz, which load balancers query, and /livez, by which a proxy is restarted: the latter
// does not depend on the Nodes. Both answer as kube-proxy does.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	healthy, eligible, updated := h.state()
	now := h.clock.Now()
	answer, count := map[string]any{"currentTime": now.String()}, h.livez
	switch r.URL.Path {
	case "/healthz":
		answer["nodeEligible"] = eligible
		healthy, count = healthy && eligible, h.healthz
	case "/livez":
	default:
		http.NotFound(w, r)
		return
	}
	if healthy {
		updated = now // nothing waits: what is there is of now
	}
	answer["lastUpdated"] = updated.String()
	count.WithLabelValues(strconv.Itoa(writeHealth(w, healthy, answer))).Inc()
}

// writeHealth answers 200 or 503.
func writeHealth(w http.ResponseWriter, healthy bool, answer any) (code int) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	code = http.StatusOK
	if !healthy {
		code = http.StatusServiceUnavailable
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // the client may have gone
	return code
}
