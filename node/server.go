package node

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/stream"
)

// NodeHeader names the Node that a request is about, if several Nodes share an endpoint. The API server sends it; other
// clients can use ?node=NAME, or the Node's own address. A request about a pod needs none of these.
const NodeHeader = "Coxswain-Node"

// endpoint is the agent's server for the API server and metrics collectors. It serves the kubelet's paths for all nodes
// of the process on one port: pods are found by name.
type endpoint struct {
	*agent
	guard    guard
	listener net.Listener
	mux      *http.ServeMux
	gate     sync.RWMutex // read-locked during every request; serve locks it to wait for all of them
}

// listen opens the agent's endpoint.
func (a *agent) listen() (*endpoint, error) {
	tc, err := a.tlsConfig()
	if err != nil {
		return nil, fmt.Errorf("create serving certificate: %w", err)
	}
	ln := a.Listener
	if ln == nil {
		if ln, err = net.Listen("tcp", net.JoinHostPort(a.ListenAddress, strconv.Itoa(a.Port))); err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
	}
	a.port = int32(ln.Addr().(*net.TCPAddr).Port)
	e := &endpoint{agent: a, mux: http.NewServeMux()}
	e.guard.ClientCAs, e.guard.Clock = a.ClientCAs, a.Clock
	e.listener = tls.NewListener(ln, tc)
	e.routes()
	return e, nil
}

// routes registers the kubelet's paths.
func (e *endpoint) routes() {
	ofPod := func(path string, serve func(http.ResponseWriter, *http.Request, *corev1.Pod)) {
		e.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			named, pod := e.namedNode(r), e.findPod(r.PathValue("namespace"), r.PathValue("pod"))
			node := named
			if node == "" && pod != nil {
				node = pod.Spec.NodeName
			}
			if !e.allowed(w, r, node) {
				return
			}
			// Authorization for one node is not authorization for another.
			if pod == nil || named != "" && named != pod.Spec.NodeName {
				http.Error(w, fmt.Sprintf("pod %q does not exist", r.PathValue("pod")), http.StatusNotFound)
				return
			}
			if available(w, e.nodes[pod.Spec.NodeName]) {
				withoutDeadlines(w)
				serve(w, r, pod)
			}
		})
	}
	ofNode := func(path string, serve func(http.ResponseWriter, *http.Request, *hostedNode)) {
		e.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if !e.allowed(w, r, e.namedNode(r)) {
				return
			}
			n, err := e.nodeOf(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if available(w, n) {
				serve(w, r, n)
			}
		})
	}
	e.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if e.allowed(w, r, e.namedNode(r)) {
			http.NotFound(w, r)
		}
	})
	ofPod("GET /containerLogs/{namespace}/{pod}/{container}", e.containerLogs)
	for _, path := range []string{"/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}"} {
		ofPod("/exec"+path, e.exec)
		ofPod("/attach"+path, e.attach)
	}
	ofPod("/portForward/{namespace}/{pod}", e.portForward)
	ofPod("/portForward/{namespace}/{pod}/{uid}", e.portForward)
	ofNode("/pods", e.listPods)
	ofNode("/runningpods/", e.listPods)
	ofNode("/stats/summary", e.statsSummary)
	ofNode("/metrics", e.kubeletMetrics)
	ofNode("/metrics/cadvisor", e.cadvisorMetrics)
	ofNode("/metrics/resource", e.resourceMetrics)
	ofNode("/metrics/probes", e.probeMetrics)
	ofNode("/configz", e.configz())
	ofNode("/healthz", func(w http.ResponseWriter, _ *http.Request, _ *hostedNode) { _, _ = w.Write([]byte("ok")) })
}

// Limits on the time to read a request and to write its response. They do not apply to streams and followed logs.
const (
	requestTimeout = 30 * time.Second
	answerTimeout  = 2 * time.Minute
)

// withoutDeadlines removes the deadlines of a response that may take as long as its client likes.
func withoutDeadlines(w http.ResponseWriter) {
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Time{}) // fails if the connection is closed, which does not matter
	_ = c.SetWriteDeadline(time.Time{})
}

// serve serves until ctx ends, and returns when all requests have ended.
func (e *endpoint) serve(ctx context.Context) {
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			e.gate.RLock()
			defer e.gate.RUnlock()
			if ctx.Err() == nil {
				e.handle(w, r)
			}
		}),
		ReadTimeout: requestTimeout, WriteTimeout: answerTimeout, IdleTimeout: 90 * time.Second,
		DisableGeneralOptionsHandler: true, // that handler answers without authentication
		BaseContext:                  func(net.Listener) context.Context { return ctx },
		ErrorLog:                     slog.NewLogLogger(e.Log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
		e.Log.Error("failed to serve the agent's endpoint", "err", err)
	}
	if stop() {
		_ = server.Close()
	}
	e.gate.Lock() // server.Close does not wait for hijacked connections, which streams have
	defer e.gate.Unlock()
}

type userKey struct{}

// handle authenticates a request before anything else: paths, nodes and pods are not revealed without credentials.
func (e *endpoint) handle(w http.ResponseWriter, r *http.Request) {
	user, err := e.guard.authenticate(r, e.links[0].client)
	if user == nil {
		if err != nil {
			e.Log.Warn("cannot authenticate a request", "err", err)
		}
		if r.ProtoMajor == 2 {
			w.Header().Set("Connection", "close") // an unauthenticated client needs a new connection for each request
		}
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	e.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
}

// allowed reports whether the guard allows a user this request to a node; if not, it writes the response. The node is
// the one that the request names, and need not exist; "" stands for all nodes.
func (e *endpoint) allowed(w http.ResponseWriter, r *http.Request, node string) bool {
	if node == "" && len(e.Names) == 1 {
		node = e.Names[0]
	}
	client := e.links[0].client
	if n := e.nodes[node]; n != nil {
		client = n.client
	}
	user := r.Context().Value(userKey{}).(*authenticationv1.UserInfo)
	denied, err := e.guard.authorize(r.Context(), client, user, node, r.Method, r.URL.Path)
	switch {
	case err != nil:
		http.Error(w, fmt.Sprintf("Authorization error (user=%s): %v", user.Username, err),
			http.StatusInternalServerError)
	case denied != "":
		http.Error(w, denied, http.StatusForbidden)
	}
	return err == nil && denied == ""
}

// available reports whether a node runs. If the node is stopped, available writes the response.
func available(w http.ResponseWriter, n *hostedNode) bool {
	if n.acts().Stopped {
		http.Error(w, "the node is stopped, as its annotation says", http.StatusServiceUnavailable)
		return false
	}
	return true
}

// nodeOf returns the node that a request is about.
func (a *agent) nodeOf(r *http.Request) (*hostedNode, error) {
	name := a.namedNode(r)
	if name == "" && len(a.Names) == 1 {
		name = a.Names[0]
	}
	switch n := a.nodes[name]; {
	case n != nil:
		return n, nil
	case name == "":
		return nil, fmt.Errorf("this agent is %d nodes: say ?node=NAME", len(a.Names))
	default:
		return nil, fmt.Errorf("this agent is not node %q", name)
	}
}

// findPod returns the pod of that name on one of the agent's nodes; nil if there is none.
func (a *agent) findPod(namespace, name string) *corev1.Pod {
	for _, l := range a.links {
		if pod, err := l.pods.Pods(namespace).Get(name); err == nil && a.nodes[pod.Spec.NodeName] != nil {
			return pod
		}
	}
	return nil
}

// podsOf returns the pods on a node, except forged ones.
func (a *agent) podsOf(n *hostedNode) []*corev1.Pod {
	all, _ := n.link.index.ByIndex(byNode, n.name) // fails only without the index
	pods := make([]*corev1.Pod, 0, len(all))
	for _, o := range all {
		if pod := o.(*corev1.Pod); !a.isForged(pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

func (e *endpoint) listPods(w http.ResponseWriter, _ *http.Request, n *hostedNode) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	for _, pod := range e.podsOf(n) {
		list.Items = append(list.Items, *pod)
	}
	writeJSON(w, &list)
}

func writeJSON(w http.ResponseWriter, o any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(o) // fails if the client has left
}

// running returns a running container.
func (a *agent) running(pod *corev1.Pod, name string) (runtime.Container, error) {
	if p := a.hostedPod(pod.UID); p != nil {
		if c := p.container(name); c != nil {
			return c, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("containers"), name)
}

func (e *endpoint) exec(w http.ResponseWriter, r *http.Request, pod *corev1.Pod) {
	argv := r.URL.Query()["command"]
	e.command(w, r, pod, func(ctx context.Context, c runtime.Container, s *stream.Command) error {
		return c.Exec(ctx, argv, s)
	})
}

func (e *endpoint) attach(w http.ResponseWriter, r *http.Request, pod *corev1.Pod) {
	e.command(w, r, pod, func(ctx context.Context, c runtime.Container, s *stream.Command) error {
		return c.Attach(ctx, s)
	})
}

// command opens the streams that a request asks for, and calls run with them and the container.
func (e *endpoint) command(w http.ResponseWriter, r *http.Request, pod *corev1.Pod,
	run func(context.Context, runtime.Container, *stream.Command) error) {
	options, err := stream.ParseOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name := r.PathValue("container")
	c, err := e.running(pod, name)
	if err != nil {
		http.Error(w, fmt.Sprintf("container not found (%q)", name), http.StatusNotFound)
		return
	}
	stream.ServeCommand(w, r, options, func(ctx context.Context, s *stream.Command) error { return run(ctx, c, s) })
}

func (e *endpoint) portForward(w http.ResponseWriter, r *http.Request, pod *corev1.Pod) {
	stream.ServePorts(w, r, func(ctx context.Context, port uint16) (net.Conn, error) {
		return e.runtimeOf(pod).Dial(ctx, pod, port)
	})
}
