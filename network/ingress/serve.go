package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"k8s.io/utils/clock"
)

const (
	maxHeaderBytes = 64 << 10
	// maxStreams limits the concurrent requests on one HTTP/2 connection.
	maxStreams = 128
)

// servers run the HTTP servers, from start to graceful shutdown.
type servers struct {
	proxy   *proxy
	clock   clock.WithDelayedExecution
	parts   []part
	failed  chan error
	ready   atomic.Bool
	running sync.WaitGroup
	cut     context.CancelFunc // ends the remaining requests
}

// health and traffic are the kinds of parts: probes are answered before there is traffic.
const (
	health  = "health"
	traffic = "traffic"
)

// part is a listener with its server.
type part struct {
	kind     string
	listener net.Listener
	secure   bool
	*http.Server
}

func newServers(o Options, p *proxy, l *limits, certificate func(name string) *certificatePair) *servers {
	ctx, cut := context.WithCancel(context.Background())
	s := &servers{proxy: p, clock: o.Clock, cut: cut, failed: make(chan error, 3)}
	add := func(kind string, ln net.Listener, h http.Handler, tc *tls.Config) {
		if ln == nil {
			return
		}
		s.parts = append(s.parts, part{kind, ln, tc != nil, &http.Server{
			Handler: h, TLSConfig: tc, MaxHeaderBytes: maxHeaderBytes,
			ReadHeaderTimeout: o.HeaderTimeout, IdleTimeout: o.IdleTimeout,
			HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
			BaseContext: func(net.Listener) context.Context { return ctx },
			ErrorLog:    slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
		}})
	}
	within := func(ln net.Listener) net.Listener {
		if ln == nil {
			return nil
		}
		return limited{ln, l}
	}
	add(traffic, within(o.HTTP), p, nil)
	add(traffic, within(o.HTTPS), p, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return certificate(hostOf(hello.ServerName)), nil
		},
	})
	probes := http.NewServeMux()
	probes.HandleFunc("/healthz", s.healthz)
	add(health, o.Health, probes, nil)
	return s
}

// healthz answers probes.
func (s *servers) healthz(w http.ResponseWriter, _ *http.Request) {
	if !s.ready.Load() {
		refuse(w, http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

// start starts the parts of a kind. Failures are sent to the channel.
func (s *servers) start(kind string) (failed <-chan error) {
	for _, p := range s.parts {
		if p.kind != kind {
			continue
		}
		s.running.Go(func() {
			serve := func() error { return p.Serve(p.listener) }
			if p.secure {
				serve = func() error { return p.ServeTLS(p.listener, "", "") }
			}
			if err := serve(); !errors.Is(err, http.ErrServerClosed) {
				s.failed <- fmt.Errorf("serve %s: %w", p.listener.Addr(), err)
			}
		})
	}
	return s.failed
}

// shutdown stops the servers gracefully: first probes fail; then no new connections are accepted, and HTTP/2 clients
// get a GOAWAY; after the grace period, remaining requests are cut off.
func (s *servers) shutdown(o Options) {
	s.ready.Store(false)
	if o.ShutdownDelay > 0 {
		delay := s.clock.NewTimer(o.ShutdownDelay)
		<-delay.C()
	}
	s.proxy.draining.Store(true)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	timer := s.clock.AfterFunc(o.ShutdownGracePeriod, func() { cancel(); s.drop() })
	defer timer.Stop()
	var ending sync.WaitGroup
	for _, p := range s.parts {
		ending.Go(func() { _ = p.Shutdown(ctx) }) // close ends the rest
	}
	ending.Wait()
	s.proxy.inFlight.wait() // including upgraded connections, which Shutdown does not track
	s.close()
}

// close stops the servers at once.
func (s *servers) close() {
	s.drop()
	s.running.Wait()
	s.proxy.inFlight.wait()
}

// drop ends all requests and connections.
func (s *servers) drop() {
	s.cut()
	for _, p := range s.parts {
		_ = p.Close()
	}
}
