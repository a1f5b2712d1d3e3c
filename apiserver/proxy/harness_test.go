package proxy_test

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
	"github.com/coxswain-dev/coxswain/apiserver/proxy/proxytest"
	"github.com/coxswain-dev/coxswain/apiserver/status"
)

// patience is how long a test waits for a stream that does not end.
const patience = time.Minute

var resources = map[string]*api.Resource{
	"pods":     {Names: api.Names{Version: "v1", Kind: "Pod", Plural: "pods", Singular: "pod"}},
	"services": {Names: api.Names{Version: "v1", Kind: "Service", Plural: "services", Singular: "service"}},
	"nodes":    {Names: api.Names{Version: "v1", Kind: "Node", Plural: "nodes", Singular: "node"}},
}

// front is a server that only forwards requests.
type front struct {
	t      *testing.T
	url    string
	config *rest.Config
	stop   context.CancelFunc
	proxy  *proxy.Proxy

	mu      sync.Mutex
	objects map[string]api.Object // by kind and name
	slices  []*discoveryv1.EndpointSlice
}

// withKubelet returns a front with the pod "web" on a node with a Kubelet as agent.
func withKubelet(t *testing.T) *front { return withAgent(t, proxytest.Kubelet) }

// withAgent returns the same with another agent.
func withAgent(t *testing.T, agent http.HandlerFunc) *front {
	t.Helper()
	port, options := proxytest.Serve(t, agent)
	f := &front{t: t, objects: map[string]api.Object{}}
	ctx, stop := context.WithCancel(t.Context())
	f.stop = stop
	f.proxy = proxy.New(ctx, options, f, log.New(io.Discard, "", 0))
	server := httptest.NewServer(f)
	f.url, f.config = server.URL, &rest.Config{Host: server.URL}
	t.Cleanup(func() {
		stop()
		f.proxy.Close()
		server.Close()
	})
	node := func(name string, port int32, addresses ...corev1.NodeAddress) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: addresses}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
		f.put("Node", n)
	}
	local := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}
	node("n", int32(port), corev1.NodeAddress{Type: corev1.NodeHostName, Address: "nowhere.invalid"}, local)
	node("mute", 0, local)
	node("nowhere", int32(port), corev1.NodeAddress{Type: corev1.NodeHostName, Address: "nowhere.invalid"})
	f.pod("web", "n", corev1.Container{Name: "main", Ports: []corev1.ContainerPort{{ContainerPort: 8443}}},
		corev1.Container{Name: "crashed"})
	f.pod("alone", "n")
	f.pod("far", "mute")
	f.pod("unplaced", "")
	f.edit("Pod", "web", func(obj api.Object) {
		obj.(*corev1.Pod).Status.PodIPs = []corev1.PodIP{{IP: proxytest.PodIP}}
	})
	return f
}

func (f *front) put(kind string, obj api.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[kind+"/"+obj.GetName()] = obj
}

func (f *front) pod(name, node string, containers ...corev1.Container) {
	if containers == nil {
		containers = []corev1.Container{{Name: "main"}}
	}
	f.put("Pod", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{NodeName: node, Containers: containers}})
}

// edit changes an object.
func (f *front) edit(kind, name string, do func(api.Object)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	obj := f.objects[kind+"/"+name].DeepCopyObject().(api.Object)
	do(obj)
	f.objects[kind+"/"+name] = obj
}

// Object implements serviceresolver.Reader.
func (f *front) Object(_ context.Context, kind schema.GroupVersionKind, _, name string) (api.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	obj := f.objects[kind.Kind+"/"+name]
	if obj == nil {
		resource := schema.GroupResource{Resource: strings.ToLower(kind.Kind) + "s"}
		return nil, apierrors.NewNotFound(resource, name)
	}
	return obj, nil
}

// EndpointSlices implements serviceresolver.Reader.
func (f *front) EndpointSlices(_ context.Context, _, service string) ([]*discoveryv1.EndpointSlice, error) {
	return slices.DeleteFunc(slices.Clone(f.slices), func(s *discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelServiceName] != service
	}), nil
}

// ServeHTTP routes as the API server does, and authorizes everything.
func (f *front) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	rest := strings.TrimPrefix(strings.TrimPrefix(hr.URL.Path, "/api/v1/"), "namespaces/default/")
	parts := append(strings.SplitN(rest, "/", 4), "", "", "")
	res := resources[parts[0]]
	switched := false
	fail := func(_ *http.Request, err error) {
		if switched {
			panic(http.ErrAbortHandler)
		}
		s := status.Of(err, status.Subject{Resource: res.GroupResource(), Name: parts[1]})
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(s.Code))
		_ = json.NewEncoder(w).Encode(s)
	}
	r := &proxy.Request{Request: hr, Resource: res, Namespace: "default", Name: parts[1],
		Subresource: parts[2], Path: parts[3],
		Query: hr.URL.Query(), Fail: fail, Switched: func() { switched = true }}
	if err := f.proxy.Serve(w, r); err != nil {
		fail(hr, err)
	}
}

// answer is a response that has been read.
type answer struct {
	t      *testing.T
	code   int
	header http.Header
	body   string
}

// do sends a request. Redirects are not followed.
func (f *front) do(method, path string, headers ...string) *answer {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, nil)
	require.NoError(f.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(f.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(f.t, err)
	return &answer{f.t, res.StatusCode, res.Header, string(body)}
}

func (f *front) get(path string, headers ...string) *answer {
	f.t.Helper()
	return f.do(http.MethodGet, path, headers...)
}

func (a *answer) ok(code int) *answer {
	a.t.Helper()
	require.Equal(a.t, code, a.code, a.body)
	return a
}

// refused requires a Status with these words.
func (a *answer) refused(code int, reason metav1.StatusReason, words string) {
	a.t.Helper()
	var s metav1.Status
	require.NoError(a.t, json.Unmarshal([]byte(a.ok(code).body), &s))
	require.Equal(a.t, reason, s.Reason)
	require.Contains(a.t, s.Message, words)
}

const (
	pods     = "/api/v1/namespaces/default/pods"
	services = "/api/v1/namespaces/default/services"
	nodes    = "/api/v1/nodes"
)
