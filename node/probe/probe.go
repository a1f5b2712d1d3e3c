// Package probe asks containers how they are, and runs their lifecycle hooks: exec, HTTP, TCP, gRPC and sleep.
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

// userAgent is the client's name that servers see in their logs.
const userAgent = "kube-probe/" + kubeversion.MajorMinor

// Target is what probes and hooks act on: a container, its pod's addresses, and a way there.
type Target struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	PodIP     string
	Exec      func(ctx context.Context, argv []string, c *stream.Command) error
	// Dial connects from within the pod's network.
	Dial func(ctx context.Context, host string, port uint16) (net.Conn, error)
}

// Kind is which question a probe answers.
type Kind string

const (
	Startup   Kind = "Startup"
	Readiness Kind = "Readiness"
	Liveness  Kind = "Liveness"
)

// maxRedirects is how often a probe follows the server to another path, as the kubelet does.
const maxRedirects = 10

// Prober asks one container the questions that its probes are, from its start to its end.
// https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
type Prober struct {
	Target
	Clock clock.WithTicker
	// Changed is called when ready or started became another; unhealthy when a probe has given the container up.
	Changed   func()
	Unhealthy func(kind Kind)
	Event     func(kind, reason, message string)

	mu      sync.Mutex
	ready   bool
	started bool
}

// Resume is state, at the start, of a container that an earlier agent has probed.
func (p *Prober) Resume(ready, started bool) { p.ready, p.started = ready, started }

// State is what the probes have found so far.
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

// Run asks until ctx ends. since is when the container started.
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

// ask repeats one probe until decided returns true or ctx ends. decided is called when enough answers in a
// row say the same. A probe but that of readiness that has failed for good gives the container up, and ask
// returns true.
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

// once asks one time.
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

// output runs a command and returns what it wrote, as far as people will read it.
func (t *Target) output(ctx context.Context, argv []string) (string, error) {
	var out bytes.Buffer
	w := &atMost{w: &out, left: 10 << 10}
	err := t.Exec(ctx, argv, &stream.Command{Stdout: w, Stderr: w})
	return strings.TrimSpace(out.String()), err
}

// atMost writes so many bytes and drops the rest. It is safe for concurrent use.
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

// port is a number, or the container's port of that name.
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

// get makes an HTTP request of a container. Certificates are not verified: they are rarely for an address.
func (t *Target) get(ctx context.Context, a *corev1.HTTPGetAction) (code int, body string, err error) {
	port, err := t.port(a.Port)
	if err != nil {
		return 0, "", err
	}
	at, err := url.Parse(a.Path)
	if err != nil {
		at = &url.URL{Path: a.Path}
	}
	host := t.host(a.Host)
	at.Scheme, at.Host = strings.ToLower(string(a.Scheme)), net.JoinHostPort(host, strconv.Itoa(int(port)))
	if at.Scheme == "" {
		at.Scheme = "http"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
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
			return http.ErrUseLastResponse // elsewhere is none of the probe's business
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

// grpc asks by gRPC's health checking protocol.
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

// Hook runs a lifecycle handler to its end.
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
