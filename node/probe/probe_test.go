package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/node/stream"
)

// target is a container of this process: its pod's address is the loopback.
func target(ports ...corev1.ContainerPort) Target {
	return Target{
		Pod: &corev1.Pod{}, Container: &corev1.Container{Ports: ports}, PodIP: "127.0.0.1",
		Dial: func(ctx context.Context, host string, port uint16) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		},
	}
}

func portOf(t *testing.T, server *httptest.Server) int {
	t.Helper()
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	port, err := strconv.Atoi(at.Port())
	require.NoError(t, err)
	return port
}

// served answers as its path says, and fails what a kubelet would not send.
func served(t *testing.T) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/status/{code}", func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.PathValue("code"))
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(code)
	})
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("where"), http.StatusFound)
	})
	mux.Handle("/round", http.RedirectHandler("/round", http.StatusFound))
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "shop.example" || r.Header.Get("X-Key") != "k" || r.UserAgent() != userAgent {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	return mux
}

func TestHTTPProbe_SucceedsFrom200To399(t *testing.T) {
	t.Parallel()
	plain, secure := httptest.NewServer(served(t)), httptest.NewTLSServer(served(t))
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	p := &Prober{Target: target(corev1.ContainerPort{Name: "web", ContainerPort: int32(portOf(t, plain))})}
	number, named := intstr.FromInt32(int32(portOf(t, plain))), intstr.FromString("web")
	for name, c := range map[string]struct {
		get  corev1.HTTPGetAction
		want string // the error; "" for none
	}{
		"200":            {corev1.HTTPGetAction{Path: "/status/200", Port: number}, ""},
		"399":            {corev1.HTTPGetAction{Path: "/status/399", Port: number}, ""},
		"400":            {corev1.HTTPGetAction{Path: "/status/400", Port: number}, "HTTP probe failed with statuscode: 400"},
		"503":            {corev1.HTTPGetAction{Path: "/status/503", Port: number}, "HTTP probe failed with statuscode: 503"},
		"named port":     {corev1.HTTPGetAction{Path: "/status/200", Port: named}, ""},
		"port as text":   {corev1.HTTPGetAction{Path: "/status/200", Port: intstr.FromString(number.String())}, ""},
		"another host":   {corev1.HTTPGetAction{Path: "/status/200", Port: number, Host: "localhost"}, ""},
		"unknown port":   {corev1.HTTPGetAction{Path: "/", Port: intstr.FromString("nope")}, "invalid port: nope"},
		"port too large": {corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(65536)}, "invalid port: 65536"},
		"redirect here": {corev1.HTTPGetAction{Path: "/to?where=/status/500", Port: number},
			"HTTP probe failed with statuscode: 500"},
		"redirect elsewhere": {corev1.HTTPGetAction{Path: "/to?where=http://elsewhere.invalid/", Port: number}, ""},
		"redirect without end": {corev1.HTTPGetAction{Path: "/round", Port: number},
			"stopped after 10 redirects"},
		"headers": {corev1.HTTPGetAction{Path: "/headers", Port: number, HTTPHeaders: []corev1.HTTPHeader{
			{Name: "host", Value: "shop.example"}, {Name: "X-Key", Value: "k"}}}, ""},
		"certificate of another name": {corev1.HTTPGetAction{Path: "/status/200", Scheme: corev1.URISchemeHTTPS,
			Port: intstr.FromInt32(int32(portOf(t, secure)))}, ""},
	} {
		err := p.once(t.Context(), &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &c.get}})
		if c.want == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.want, name)
		}
	}
}

func TestTCPProbe_SucceedsOnOpenPorts(t *testing.T) {
	t.Parallel()
	open, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = open.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	p := &Prober{Target: target()}
	ask := func(port int) error {
		return p.once(t.Context(), &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(int32(port))}}})
	}
	require.NoError(t, ask(open.Addr().(*net.TCPAddr).Port))
	require.ErrorContains(t, ask(closed.Addr().(*net.TCPAddr).Port), "connection refused")
	require.EqualError(t, ask(0), "invalid port: 0")
}

func TestGRPCProbe_ChecksTheService(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	state, server := health.NewServer(), grpc.NewServer()
	state.SetServingStatus("down", healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(server, state)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
	})
	p := &Prober{Target: target()}
	ask := func(service *string) error {
		return p.once(t.Context(), &corev1.Probe{TimeoutSeconds: 60, ProbeHandler: corev1.ProbeHandler{
			GRPC: &corev1.GRPCAction{Port: int32(listener.Addr().(*net.TCPAddr).Port), Service: service}}})
	}
	require.NoError(t, ask(nil))
	require.EqualError(t, ask(ptr.To("down")), `service unhealthy (responded with "NOT_SERVING")`)
	require.ErrorContains(t, ask(ptr.To("unheard of")), "unknown service")
}

func TestExecProbe_FailsWithItsOutput(t *testing.T) {
	t.Parallel()
	failed := errors.New("exit status 1")
	for name, c := range map[string]struct {
		exec func(context.Context, *stream.Command) error
		want string
	}{
		"success": {func(_ context.Context, c *stream.Command) error {
			_, err := io.WriteString(c.Stdout, "fine")
			return err
		}, ""},
		"output": {func(_ context.Context, c *stream.Command) error {
			_, err := io.WriteString(c.Stderr, " broken\n")
			return errors.Join(err, failed)
		}, "broken"},
		"no output": {func(context.Context, *stream.Command) error { return failed }, "exit status 1"},
		"much output": {func(_ context.Context, c *stream.Command) error {
			_, err := io.WriteString(c.Stdout, strings.Repeat("x", 20<<10))
			return errors.Join(err, failed)
		}, strings.Repeat("x", 10<<10)},
		"no end": {func(ctx context.Context, _ *stream.Command) error {
			<-ctx.Done()
			return ctx.Err()
		}, `command timed out: "sh -c x" timed out after 2s`},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &Prober{Target: target()}
			p.Exec = func(ctx context.Context, argv []string, command *stream.Command) error {
				require.Equal(t, []string{"sh", "-c", "x"}, argv)
				return c.exec(ctx, command)
			}
			err := p.once(t.Context(), &corev1.Probe{TimeoutSeconds: 2, ProbeHandler: corev1.ProbeHandler{
				Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "x"}}}})
			if c.want == "" {
				require.NoError(t, err, name)
			} else {
				require.EqualError(t, err, c.want, name)
			}
		})
	}
	require.EqualError(t, (&Prober{}).once(t.Context(), &corev1.Probe{}), "missing probe handler")
}

// TestProber_FollowsThresholdsAndPeriods runs the probes of a container that is healthy at some times, and expects
// what is reported, and when.
func TestProber_FollowsThresholdsAndPeriods(t *testing.T) {
	t.Parallel()
	every := func(seconds, success, failure int32) *corev1.Probe {
		return &corev1.Probe{PeriodSeconds: seconds, SuccessThreshold: success, FailureThreshold: failure,
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	}
	later := every(10, 1, 3)
	later.InitialDelaySeconds = 7
	between := func(from, to int) func(int) bool { return func(at int) bool { return from <= at && at < to } }
	for name, c := range map[string]struct {
		container corev1.Container
		resumed   bool // ready and started by an earlier agent
		broken    func(at int) bool
		want      []string
		unhealthy int // events
	}{
		"no probes": {want: []string{"0s ready=true started=true"}},
		"readiness comes and goes": {
			container: corev1.Container{StartupProbe: every(10, 1, 3), ReadinessProbe: every(5, 2, 2)},
			broken:    func(at int) bool { return at < 10 || between(20, 30)(at) },
			want: []string{"10s ready=false started=true", "15s ready=true started=true",
				"25s ready=false started=true", "35s ready=true started=true"},
			unhealthy: 3,
		},
		"one failure below the threshold": {
			container: corev1.Container{ReadinessProbe: every(5, 1, 2)},
			broken:    between(20, 25),
			want:      []string{"0s ready=false started=true", "0s ready=true started=true"},
			unhealthy: 1,
		},
		"liveness": {
			container: corev1.Container{LivenessProbe: later},
			broken:    between(0, 100),
			want:      []string{"0s ready=true started=true", "27s Liveness is given up"},
			unhealthy: 3,
		},
		"liveness recovers": {
			container: corev1.Container{LivenessProbe: later},
			broken:    between(0, 20),
			want:      []string{"0s ready=true started=true"},
			unhealthy: 2,
		},
		"never started": {
			container: corev1.Container{StartupProbe: every(10, 1, 2), LivenessProbe: every(1, 1, 1)},
			broken:    between(0, 100),
			want:      []string{"10s Startup is given up"},
			unhealthy: 2,
		},
		"resumed": {
			container: corev1.Container{StartupProbe: every(10, 1, 2), ReadinessProbe: every(10, 1, 2)},
			resumed:   true,
			broken:    between(0, 15),
			want:      []string{"10s ready=false started=true", "20s ready=true started=true"},
			unhealthy: 2,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var got []string
			unhealthy := 0
			note := func(format string, args ...any) {
				got = append(got, fmt.Sprintf("%v ", time.Since(began))+fmt.Sprintf(format, args...))
			}
			p := &Prober{Target: target(), Clock: clock.RealClock{}}
			p.Container = &c.container
			p.Exec = func(context.Context, []string, *stream.Command) error {
				if c.broken(int(time.Since(began).Seconds())) {
					return errors.New("broken")
				}
				return nil
			}
			p.Changed = func() {
				ready, started := p.State()
				note("ready=%v started=%v", ready, started)
			}
			p.Unhealthy = func(kind Kind) { note("%s is given up", kind) }
			p.Event = func(kind, reason, message string) {
				require.Equal(t, []string{"Warning", "Unhealthy"}, []string{kind, reason}, name)
				require.Contains(t, message, "probe failed: broken", name)
				unhealthy++
			}
			p.Resume(c.resumed, c.resumed)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
			defer cancel()
			p.Run(ctx, began)
			require.Equal(t, c.want, got, name)
			require.Equal(t, c.unhealthy, unhealthy, name)
		})
	}
}

func TestHook_WaitsForTheHandler(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(served(t))
	t.Cleanup(server.Close)
	at := target()
	at.Exec = func(_ context.Context, argv []string, c *stream.Command) error {
		_, err := io.WriteString(c.Stderr, "no such file\n")
		return errors.Join(err, &stream.ExitError{Code: len(argv)})
	}
	get := func(path string) *corev1.HTTPGetAction {
		return &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(int32(portOf(t, server)))}
	}
	require.NoError(t, at.Hook(t.Context(), &corev1.LifecycleHandler{HTTPGet: get("/status/204")}, nil))
	require.EqualError(t, at.Hook(t.Context(), &corev1.LifecycleHandler{HTTPGet: get("/status/404")}, nil),
		"HTTP status 404")
	require.EqualError(t, at.Hook(t.Context(), &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
		Command: []string{"cat", "nope"}}}, nil),
		`command terminated with non-zero exit code: exit status 2, message: "no such file"`)
	require.EqualError(t, at.Hook(t.Context(), &corev1.LifecycleHandler{}, nil), "invalid handler")

	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		sleep := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}}
		require.NoError(t, at.Hook(t.Context(), sleep, clock.RealClock{}))
		require.Equal(t, 5*time.Second, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.NoError(t, at.Hook(ctx, sleep, clock.RealClock{}), "it is cut short")
		require.Equal(t, 6*time.Second, time.Since(began))
	})
}

func TestProbe_SupportsHTTP2AndTLS(t *testing.T) {
	t.Parallel()
	var protocol atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		protocol.Store(int32(r.ProtoMajor))
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	one := target()
	for want, p := range map[int32]*corev1.HTTPProtocol{1: nil, 2: ptr.To(corev1.HTTPProtocolHTTP2)} {
		action := &corev1.HTTPGetAction{Port: intstr.FromInt(portOf(t, server)), Protocol: p}
		code, _, err := one.get(t.Context(), action)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, want, protocol.Load())
	}

	secure := httptest.NewTLSServer(nil) // for its certificate
	defer secure.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	health, checker := grpc.NewServer(grpc.Creds(credentials.NewTLS(secure.TLS))), health.NewServer()
	healthpb.RegisterHealthServer(health, checker)
	go func() { _ = health.Serve(listener) }()
	defer health.Stop()
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	require.NoError(t, one.grpc(t.Context(), &corev1.GRPCAction{Port: port, Mode: ptr.To(corev1.GRPCProbeModeTLS)}))
	require.Error(t, one.grpc(t.Context(), &corev1.GRPCAction{Port: port}))
}
