package proxy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/coxswain-dev/coxswain/apiserver/serviceresolver"
)

// forward forwards a request of any method to a pod, a service or a node:
// …/pods/[SCHEME:]NAME[:PORT]/proxy/PATH.
// https://kubernetes.io/docs/tasks/access-application-cluster/access-cluster-services/
func (px *Proxy) forward(w http.ResponseWriter, r *Request) error {
	target, transport, err := px.proxyTarget(r)
	if err != nil {
		return err
	}
	target.Path = r.Path
	if target.Path == "" && !strings.HasSuffix(r.URL.Path, "/") &&
		(r.Method == http.MethodGet || r.Method == http.MethodHead) && !isUpgrade(r.Request) {
		// Links in a page are relative to its path.
		location := &url.URL{Path: r.URL.Path + "/", RawQuery: r.URL.RawQuery}
		w.Header().Set("Location", location.String())
		w.WriteHeader(http.StatusMovedPermanently)
		return nil
	}
	target.Path = "/" + target.Path
	target.RawQuery = r.URL.RawQuery
	node := ""
	if transport == px.kubelets {
		_, node, _, _ = utilnet.SplitSchemeNamePort(r.Name)
	}
	own := strings.TrimSuffix(r.URL.Path, target.Path)
	px.pass(w, r, passage{
		target: target, transport: transport, host: r.Host, node: node,
		check: func(res *http.Response) error {
			moveLocation(res, target, own)
			return nil
		},
		failed: func(err error) error {
			return apierrors.NewServiceUnavailable(fmt.Sprintf("error trying to reach service: %v", err))
		},
	})
	return nil
}

// moveLocation turns a redirect within the backend into one below the proxy's path.
func moveLocation(res *http.Response, backend *url.URL, own string) {
	text := res.Header.Get("Location")
	location, err := url.Parse(text)
	if text == "" || err != nil || location.Host != "" && location.Host != backend.Host ||
		!strings.HasPrefix(location.Path, "/") {
		return
	}
	location.Scheme, location.Host, location.Path = "", "", own+location.Path
	res.Header.Set("Location", location.String())
}

// proxyTarget resolves the name in a proxy's path.
func (px *Proxy) proxyTarget(r *Request) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(r.Name)
	if !ok {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid %s request %q", r.Resource.Singular, r.Name))
	}
	var host string
	var err error
	switch r.Resource.Plural {
	case "nodes":
		return px.nodeTarget(r.Context(), scheme, name, port)
	case "pods":
		host, err = px.podTarget(r, name, port)
	default:
		host, err = px.serviceTarget(r, name, port)
	}
	if scheme == "" {
		scheme = "http"
	}
	return &url.URL{Scheme: scheme, Host: host}, px.workload, err
}

func (px *Proxy) podTarget(r *Request, name, port string) (string, error) {
	obj, err := px.objects.Object(r.Context(), r.Resource.GVK(), r.Namespace, name)
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
	// The server can reach addresses that its clients must not: itself, and services of its machine.
	if addr, err := netip.ParseAddr(ip); err != nil || !addr.IsGlobalUnicast() {
		return "", apierrors.NewBadRequest("address not allowed")
	}
	if port == "" {
		return strings.TrimSuffix(net.JoinHostPort(ip, ""), ":"), nil
	}
	return net.JoinHostPort(ip, port), nil
}

func (px *Proxy) nodeTarget(ctx context.Context, scheme, name, port string) (*url.URL, http.RoundTripper, error) {
	host, agents, err := px.kubeletAt(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if port == "" || port == agents {
		return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, agents)}, px.kubelets, nil
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
	return &url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}, px.workload, nil
}

// serviceTarget returns a random one of the addresses behind a port of a service.
func (px *Proxy) serviceTarget(r *Request, name, port string) (string, error) {
	service, err := serviceresolver.Service(r.Context(), px.objects, r.Namespace, name)
	if err != nil {
		return "", err
	}
	if n, err := strconv.ParseInt(port, 10, 64); err == nil {
		if port, err = serviceresolver.PortName(service, n); err != nil {
			return "", err
		}
	}
	endpointSlices, err := px.objects.EndpointSlices(r.Context(), r.Namespace, name)
	if err != nil {
		return "", err
	}
	return serviceresolver.Ready(service, endpointSlices, port,
		func(e *discoveryv1.Endpoint) []string { return px.ofPod(r, e) })
}

// ofPod returns the addresses of an endpoint that belong to its pod. A user with the right to write a slice could put
// any address into it, and the server must not connect there.
func (px *Proxy) ofPod(r *Request, e *discoveryv1.Endpoint) []string {
	if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
		return nil
	}
	obj, err := px.objects.Object(r.Context(), podKind, r.Namespace, e.TargetRef.Name)
	if err != nil {
		return nil
	}
	own := obj.(*corev1.Pod).Status.PodIPs
	var addresses []string
	for _, ip := range e.Addresses {
		if addr, err := netip.ParseAddr(ip); err != nil || !addr.IsGlobalUnicast() {
			continue
		}
		if slices.ContainsFunc(own, func(p corev1.PodIP) bool { return p.IP == ip }) {
			addresses = append(addresses, ip)
		}
	}
	return addresses
}
