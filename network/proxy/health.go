package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/network/netns"
)

// healthChecks are the servers of health check node ports, one for each Service that has one. Load balancers query them
// to find the Nodes with endpoints of a Service with policy Local. They listen at all addresses of the proxy's network
// namespace. The methods are not safe for concurrent use.
type healthChecks struct {
	namespace *os.File
	healthy   func() bool
	log       *slog.Logger
	open      map[types.NamespacedName]*healthCheck
	failed    map[types.NamespacedName]uint16 // reported ports that could not be opened
}

// healthCheck is the server of one Service.
type healthCheck struct {
	name    types.NamespacedName
	port    uint16
	healthy func() bool
	log     *slog.Logger
	local   atomic.Int64 // number of ready local endpoints
	server  *http.Server
	running sync.WaitGroup
}

// set updates a Service: its health check node port, 0 for none, and its number of ready local endpoints.
func (c *healthChecks) set(name types.NamespacedName, port uint16, local int) {
	h := c.open[name]
	if h != nil && h.port != port {
		h.close()
		delete(c.open, name)
		h = nil
	}
	if port == 0 {
		delete(c.failed, name)
		return
	}
	if h == nil {
		h = &healthCheck{name: name, port: port, healthy: c.healthy, log: c.log}
		if err := h.listen(c.namespace); err != nil {
			if c.failed[name] != port {
				c.log.Warn("cannot serve health check node port", "service", name, "err", err)
			}
			c.failed[name] = port
			return
		}
		c.open[name] = h
		delete(c.failed, name)
	}
	h.local.Store(int64(local))
}

// close closes all servers.
func (c *healthChecks) close() {
	for _, h := range c.open {
		h.close()
	}
}

func (h *healthCheck) listen(namespace *os.File) error {
	var listener net.Listener
	err := netns.Do(namespace, func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", ":"+strconv.Itoa(int(h.port)))
		return err
	})
	if err != nil {
		return fmt.Errorf("listen for health checks: %w", err)
	}
	h.server = &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
	}
	h.running.Go(func() {
		if err := h.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			h.log.Warn("failed to serve health check node port", "service", h.name, "err", err)
		}
	})
	return nil
}

func (h *healthCheck) close() {
	_ = h.server.Close()
	h.running.Wait()
}

// ServeHTTP answers like kube-proxy.
func (h *healthCheck) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	type service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}
	local, healthy := h.local.Load(), h.healthy()
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(local, 10))
	writeHealth(w, local > 0 && healthy, struct {
		Service             service `json:"service"`
		LocalEndpoints      int64   `json:"localEndpoints"`
		ServiceProxyHealthy bool    `json:"serviceProxyHealthy"`
	}{service{h.name.Namespace, h.name.Name}, local, healthy})
}
