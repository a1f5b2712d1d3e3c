// Package probe runs containers' probes and lifecycle hooks: exec, HTTP, TCP, gRPC and sleep.
//
// A Target is a container with two ways to reach it, Exec and Dial, which its runtime supplies. A Prober repeats the
// startup, readiness and liveness probes of one run of a container and reports through callbacks.
package probe

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
	"github.com/coxswain-dev/coxswain/internal/kubeversion"
	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/stream"
)

// userAgent is the User-Agent of HTTP and gRPC probes.
const userAgent = "kube-probe/" + kubeversion.MajorMinor

// Target is the container that probes and hooks act on, with the ways to reach it.
type Target struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	PodIP     string
	Exec      func(ctx context.Context, argv []string, c *stream.Command) error
	// Dial connects from within the pod's network.
	Dial func(ctx context.Context, host string, port uint16) (net.Conn, error)
}

// Kind is the type of a probe.
type Kind string

const (
	Startup   Kind = "Startup"
	Readiness Kind = "Readiness"
	Liveness  Kind = "Liveness"
)

// maxRedirects limits the redirects that a probe follows, as in the kubelet.
const maxRedirects = 10

// Prober repeats the probes of one run of a container, from its start to its end.
// https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
type Prober struct {
	Target
	Clock clock.WithTicker
	// Changed is called after ready or started has changed.
	Changed func()
	// Unhealthy is called once a startup or liveness probe has reached its failureThreshold.
	Unhealthy func(kind Kind)
	Event     func(kind, reason, message string)

	mu      sync.Mutex // guards the fields below
	ready   bool
	started bool
	results map[Result]uint64
}

// Result is the outcome of a probe.
type Result struct {
	Kind      Kind
	Succeeded bool
}

// Results returns how often the probes have had each outcome.
func (p *Prober) Results() map[Result]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.results)
}

func (p *Prober) count(r Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.results == nil {
		p.results = map[Result]uint64{}
	}
	p.results[r]++
}

// Resume sets the state of a container that an earlier agent has probed. It must be called before Run.
func (p *Prober) Resume(ready, started bool) { p.ready, p.started = ready, started }

// State returns the results of the probes so far. A container is not ready before it has started.
func (p *Prober) State() (ready, started bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready && p.started, p.started
}

func (p *Prober) set(ready, started bool) {
	p.mu.Lock()
	differs := p.ready != ready || p.started != started
	p.ready, p.started = ready, started
	p.mu.Unlock()
	if differs {
		p.Changed()
	}
}

// Run probes until ctx ends, or until the startup probe has failed for good. since is the container's start time.
func (p *Prober) Run(ctx context.Context, since time.Time) {
	c := p.Container
	if c.StartupProbe != nil && !p.IsStarted() {
		failed := p.ask(ctx, Startup, c.StartupProbe, since, func(ok bool) (done bool) { return ok })
		if failed || ctx.Err() != nil {
			return
		}
	}
	p.set(c.ReadinessProbe == nil || p.isReady(), true)
	var both sync.WaitGroup
	if c.ReadinessProbe != nil {
		both.Go(func() {
			p.ask(ctx, Readiness, c.ReadinessProbe, since, func(ok bool) bool {
				p.set(ok, true)
				return false
			})
		})
	}
	if c.LivenessProbe != nil {
		both.Go(func() { p.ask(ctx, Liveness, c.LivenessProbe, since, func(bool) bool { return false }) })
	}
	both.Wait()
}

func (p *Prober) IsStarted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.started
}

func (p *Prober) isReady() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready
}

// ask repeats one probe until decided returns true or ctx ends. decided is called after each result, as soon as the
// threshold of consecutive equal results is reached. A startup or liveness probe that reaches its failureThreshold
// calls Unhealthy instead, and ask returns true.
func (p *Prober) ask(ctx context.Context, kind Kind, probe *corev1.Probe, since time.Time,
	decided func(ok bool) (done bool)) (failed bool) {
	delay := since.Add(amount.Seconds(int64(probe.InitialDelaySeconds))).Sub(p.Clock.Now())
	if !virtualtime.Wait(ctx, p.Clock, delay) {
		return false
	}
	period := amount.Seconds(int64(max(1, probe.PeriodSeconds)))
	inRow, last := int32(0), false
	for {
		err := p.once(ctx, probe)
		if ctx.Err() != nil {
			return false
		}
		p.count(Result{kind, err == nil})
		if ok := err == nil; ok == last {
			inRow++
		} else {
			inRow, last = 1, ok
		}
		if err != nil {
			p.Event(corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe failed: %v", kind, err))
		}
		switch {
		case last && inRow >= max(1, probe.SuccessThreshold):
			if decided(true) {
				return false
			}
		case !last && inRow >= max(1, probe.FailureThreshold):
			if kind != Readiness {
				p.Unhealthy(kind)
				return true
			}
			decided(false)
		}
		if !virtualtime.Wait(ctx, p.Clock, period) {
			return false
		}
	}
}

// once runs a probe once.
func (p *Prober) once(ctx context.Context, probe *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, amount.Seconds(int64(max(1, probe.TimeoutSeconds))))
	defer cancel()
	switch {
	case probe.Exec != nil:
		out, err := p.output(ctx, probe.Exec.Command)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("command timed out: %q timed out after %ds", strings.Join(probe.Exec.Command, " "),
				max(1, probe.TimeoutSeconds))
		}
		if err != nil && out != "" {
			return errors.New(out)
		}
		return err
	case probe.HTTPGet != nil:
		code, _, err := p.get(ctx, probe.HTTPGet)
		if err == nil && (code < 200 || code >= 400) {
			err = fmt.Errorf("HTTP probe failed with statuscode: %d", code)
		}
		return err
	case probe.TCPSocket != nil:
		port, err := p.port(probe.TCPSocket.Port)
		if err != nil {
			return err
		}
		conn, err := p.Dial(ctx, p.host(probe.TCPSocket.Host), port)
		if err != nil {
			return err
		}
		return conn.Close()
	case probe.GRPC != nil:
		return p.grpc(ctx, probe.GRPC)
	}
	return errors.New("missing probe handler")
}

// output runs a command and returns the beginning of its output, for Events.
func (t *Target) output(ctx context.Context, argv []string) (string, error) {
	var out bytes.Buffer
	w := &atMost{w: &out, left: 10 << 10}
	err := t.Exec(ctx, argv, &stream.Command{Stdout: w, Stderr: w})
	return strings.TrimSpace(out.String()), err
}

// atMost writes the first left bytes and drops the rest. It is safe for concurrent use.
type atMost struct {
	mu   sync.Mutex
	w    io.Writer
	left int
}

func (a *atMost) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := min(len(b), a.left)
	a.left -= n
	if _, err := a.w.Write(b[:n]); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (t *Target) host(host string) string {
	if host == "" {
		return t.PodIP
	}
	return host
}

// port resolves a port number, or the name of one of the container's ports.
func (t *Target) port(p intstr.IntOrString) (uint16, error) {
	n := p.IntValue()
	if p.Type == intstr.String && n == 0 {
		for _, named := range t.Container.Ports {
			if named.Name == p.StrVal {
				n = int(named.ContainerPort)
			}
		}
	}
	if n <= 0 || n > 65535 {
		return 0, fmt.Errorf("invalid port: %v", p.String())
	}
	return uint16(n), nil
}

// get sends an HTTP request to a container. Certificates are not verified: they are seldom valid for a pod's address.
func (t *Target) get(ctx context.Context, a *corev1.HTTPGetAction) (code int, body string, err error) {
	port, err := t.port(a.Port)
	if err != nil {
		return 0, "", err
	}
	address, err := url.Parse(a.Path)
	if err != nil {
		address = &url.URL{Path: a.Path}
	}
	host := t.host(a.Host)
	address.Scheme, address.Host = strings.ToLower(string(a.Scheme)), net.JoinHostPort(host, strconv.Itoa(int(port)))
	if address.Scheme == "" {
		address.Scheme = "http"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("User-Agent", userAgent)
	request.Header.Set("Accept", "*/*")
	for _, h := range a.HTTPHeaders {
		if strings.EqualFold(h.Name, "Host") {
			request.Host = h.Value
			continue
		}
		request.Header.Set(h.Name, h.Value)
	}
	transport := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return t.Dial(ctx, host, port) },
	}
	if a.Protocol != nil && *a.Protocol == corev1.HTTPProtocolHTTP2 {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		switch {
		case r.URL.Hostname() != via[0].URL.Hostname():
			return http.ErrUseLastResponse // redirects to other hosts are not followed
		case len(via) >= maxRedirects:
			return fmt.Errorf("stopped after %d redirects", maxRedirects)
		}
		return nil
	}}
	answer, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 10<<10))
	return answer.StatusCode, string(text), err
}

// grpc calls the Check method of gRPC's health checking protocol.
func (t *Target) grpc(ctx context.Context, a *corev1.GRPCAction) error {
	security := insecure.NewCredentials()
	if a.Mode != nil && *a.Mode == corev1.GRPCProbeModeTLS {
		security = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(t.PodIP, strconv.Itoa(int(a.Port))),
		grpc.WithTransportCredentials(security), grpc.WithUserAgent(userAgent),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return t.Dial(ctx, t.PodIP, uint16(a.Port))
		}))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	service := ""
	if a.Service != nil {
		service = *a.Service
	}
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service},
		grpc.MaxCallRecvMsgSize(10<<10))
	if err != nil {
		return fmt.Errorf("rpc error: %w", err)
	}
	if answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("service unhealthy (responded with %q)", answer.GetStatus().String())
	}
	return nil
}

// Hook runs a lifecycle handler and waits until it has finished.
func (t *Target) Hook(ctx context.Context, h *corev1.LifecycleHandler, c clock.Clock) error {
	switch {
	case h.Exec != nil:
		out, err := t.output(ctx, h.Exec.Command)
		if err != nil {
			return fmt.Errorf("%w, message: %q", err, out)
		}
		return nil
	case h.HTTPGet != nil:
		code, _, err := t.get(ctx, h.HTTPGet)
		if err == nil && code >= 400 {
			err = fmt.Errorf("HTTP status %d", code)
		}
		return err
	case h.Sleep != nil:
		timer := c.NewTimer(amount.Seconds(h.Sleep.Seconds))
		defer timer.Stop()
		select {
		case <-timer.C():
		case <-ctx.Done():
		}
		return nil
	}
	return errors.New("invalid handler")
}
