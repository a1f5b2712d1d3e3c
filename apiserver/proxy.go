package apiserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/coxswain-dev/coxswain/storage"
)

// proxy sends a request of any method on to a pod, a service or a node:
// …/pods/[SCHEME:]NAME[:PORT]/proxy/PATH.
// https://kubernetes.io/docs/tasks/access-application-cluster/access-cluster-services/
func (s *Server) proxy(w http.ResponseWriter, r *request) error {
	to, transport, err := s.proxyTarget(r)
	if err != nil {
		return err
	}
	to.Path = chi.URLParam(r.Request, "*")
	if to.Path == "" && !strings.HasSuffix(r.URL.Path, "/") && (r.Method == http.MethodGet || r.Method == http.MethodHead) && !isUpgrade(r.Request) {
		// Links in a page are relative to its path.
		location := &url.URL{Path: r.URL.Path + "/", RawQuery: r.URL.RawQuery}
		w.Header().Set("Location", location.String())
		w.WriteHeader(http.StatusMovedPermanently)
		return nil
	}
	to.Path = "/" + to.Path
	to.RawQuery = r.URL.RawQuery
	node := ""
	if transport == s.backends.kubelets {
		_, node, _, _ = utilnet.SplitSchemeNamePort(r.name)
	}
	own := strings.TrimSuffix(r.URL.Path, to.Path)
	s.pass(w, r, passage{
		to: to, transport: transport, host: r.Host, node: node,
		check: func(res *http.Response) error {
			moveLocation(res, to, own)
			return nil
		},
		failed: func(err error) error {
			return apierrors.NewServiceUnavailable(fmt.Sprintf("error trying to reach service: %v", err))
		},
	})
	return nil
}

// moveLocation makes a redirect within the backend one below the proxy's path.
func moveLocation(res *http.Response, backend *url.URL, own string) {
	text := res.Header.Get("Location")
	location, err := url.Parse(text)
	if text == "" || err != nil || location.Host != "" && location.Host != backend.Host || !strings.HasPrefix(location.Path, "/") {
		return
	}
	location.Scheme, location.Host, location.Path = "", "", own+location.Path
	res.Header.Set("Location", location.String())
}

// proxyTarget finds out where a name in a proxy's path leads.
func (s *Server) proxyTarget(r *request) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(r.name)
	if !ok {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid %s request %q", r.res.Singular, r.name))
	}
	var host string
	var err error
	switch r.res.Plural {
	case "nodes":
		return s.nodeTarget(r.Context(), scheme, name, port)
	case "pods":
		host, err = s.podTarget(r, name, port)
	default:
		host, err = s.serviceTarget(r, name, port)
	}
	if scheme == "" {
		scheme = "http"
	}
	return &url.URL{Scheme: scheme, Host: host}, s.backends.workload, err
}

func (s *Server) podTarget(r *request, name, port string) (string, error) {
	obj, err := s.object(r.Context(), r.res, r.namespace, name)
	if err != nil {
		return "", err
	}
	pod := obj.(*corev1.Pod)
	for i := 0; i < len(pod.Spec.Containers) && port == ""; i++ {
		if ports := pod.Spec.Containers[i].Ports; len(ports) > 0 {
			port = strconv.Itoa(int(ports[0].ContainerPort))
		}
	}
	ip := pod.Status.PodIP
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	// The server may reach what its clients may not: itself, and the services of its machine.
	if addr, err := netip.ParseAddr(ip); err != nil || !addr.IsGlobalUnicast() {
		return "", apierrors.NewBadRequest("address not allowed")
	}
	if port == "" {
		return strings.TrimSuffix(net.JoinHostPort(ip, ""), ":"), nil
	}
	return net.JoinHostPort(ip, port), nil
}

func (s *Server) nodeTarget(ctx context.Context, scheme, name, port string) (*url.URL, http.RoundTripper, error) {
	host, agents, err := s.kubeletAt(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if port == "" || port == agents {
		return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, agents)}, s.backends.kubelets, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	for _, a := range addrs {
		if a = a.Unmap(); !a.IsGlobalUnicast() {
			return nil, nil, apierrors.NewBadRequest("address not allowed")
		}
	}
	if scheme == "" {
		scheme = "http"
	}
	return &url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}, s.backends.workload, nil
}

// serviceTarget is one of the addresses behind a port of a service, at random.
func (s *Server) serviceTarget(r *request, name, port string) (string, error) {
	obj, err := s.object(r.Context(), r.res, r.namespace, name)
	if err != nil {
		return "", err
	}
	service := obj.(*corev1.Service)
	if n, err := strconv.ParseInt(port, 10, 64); err == nil {
		at := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return int64(p.Port) == n })
		if at < 0 {
			return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", n, name))
		}
		port = service.Spec.Ports[at].Name
	}
	ofService := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: name})
	list, err := s.collection(s.kinds.endpointSlice).List(r.Context(), storage.ListRequest{
		Scope: storage.Scope{Namespace: r.namespace, Match: func(o *storage.Object) bool { return ofService.Matches(o.Labels) }},
		At:    storage.At{Any: true},
	})
	if err != nil {
		return "", err
	}
	var targets []string
	for _, o := range list.Items {
		obj, err := decode(s.kinds.endpointSlice, o)
		if err != nil {
			return "", err
		}
		targets = append(targets, s.readyTargets(r, obj.(*discoveryv1.EndpointSlice), port)...)
	}
	if len(targets) == 0 {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	return targets[rand.IntN(len(targets))], nil
}

// readyTargets are the addresses of a slice that are pods': anybody who may write a slice
// could point it anywhere, and the server must not be led there.
func (s *Server) readyTargets(r *request, slice *discoveryv1.EndpointSlice, port string) []string {
	var targets []string
	for _, p := range slice.Ports {
		if p.Port == nil || p.Name != nil && *p.Name != port || p.Name == nil && port != "" {
			continue
		}
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready || e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
				continue
			}
			obj, err := s.object(r.Context(), s.kinds.pod, r.namespace, e.TargetRef.Name)
			if err != nil {
				continue
			}
			for _, ip := range e.Addresses {
				if addr, err := netip.ParseAddr(ip); err != nil || !addr.IsGlobalUnicast() {
					continue
				}
				if slices.ContainsFunc(obj.(*corev1.Pod).Status.PodIPs, func(own corev1.PodIP) bool { return own.IP == ip }) {
					targets = append(targets, net.JoinHostPort(ip, strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	return targets
}
