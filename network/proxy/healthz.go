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
	// A proxy is unhealthy if a change has been pending for so long.
	healthTimeout = time.Minute
	// leavingTaint is set by the cluster autoscaler on a Node that it is about to remove (KEP-3836).
	leavingTaint = "ToBeDeletedByClusterAutoscaler"
)

// Health is the health of a proxy. Its methods are safe for concurrent use; a nil Health must not be used.
type Health struct {
	clock          clock.PassiveClock
	healthz, livez *prometheus.CounterVec

	mu         sync.Mutex
	pending    time.Time // since when a change is pending; zero if none is
	updated    time.Time // time of the last commit
	ineligible bool
}

// NewHealth returns the health of a proxy that has not started, which is healthy. The clock must be the proxy's.
func NewHealth(c clock.PassiveClock) *Health {
	return &Health{clock: c, healthz: answers("healthz"), livez: answers("livez")}
}

func answers(path string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_proxy_" + path + "_total",
		Help: "Cumulative proxy " + path + " HTTP status"}, []string{"code"})
}

// queued records that a change is pending.
func (h *Health) queued() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pending.IsZero() {
		h.pending = h.clock.Now()
	}
}

// committed records that all changes are in the kernel.
func (h *Health) committed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending, h.updated = time.Time{}, h.clock.Now()
}

// setNodes records whether load balancers may send to these Nodes. They may not if all Nodes are about to be removed.
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

// Healthy reports whether no change has been pending for a minute. It does not depend on the Nodes.
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

// ServeHTTP answers /healthz for load balancers, and /livez for restarts of the proxy. The latter does not depend on
// the Nodes. Both answer like kube-proxy.
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
		updated = now // no change is pending, so the state is current
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
	_ = json.NewEncoder(w).Encode(answer) // the client may have disconnected
	return code
}
