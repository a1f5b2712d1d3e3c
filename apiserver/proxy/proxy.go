// Package proxy forwards requests to nodes' agents, pods and services: logs, exec, attach, port-forward and …/proxy.
// Responses go back unchanged. WebSocket and SPDY are upgrades of the connection, which is then a pipe between the
// client and the agent, except if the agent speaks only SPDY (translate.go, tunnel.go).
//
// An authorized and admitted Request comes in; objects are read through a serviceresolver.Reader. The server and
// storage must not be imported.
package proxy

import (
	"context"
	"crypto/tls"
	"log"
	"net"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/serviceresolver"
)

var (
	podKind  = corev1.SchemeGroupVersion.WithKind("Pod")
	nodeKind = corev1.SchemeGroupVersion.WithKind("Node")
)

// Request is a request on its way to an agent, a pod or a service.
type Request struct {
	*http.Request
	Resource                     *api.Resource
	Namespace, Name, Subresource string
	Query                        url.Values
	// Path is the path after …/proxy/.
	Path string
	// Fail sends an error to the client. Its argument is the request as it was forwarded.
	Fail func(*http.Request, error)
	// Switched is called when the connection has been upgraded.
	Switched func()
}

// Proxy forwards requests. Its methods are safe for concurrent use.
//
// Its transports speak HTTP/1.1 only: an HTTP/2 connection cannot be upgraded.
type Proxy struct {
	objects      serviceresolver.Reader
	log          *log.Logger
	addressTypes []corev1.NodeAddressType
	// drain is done when the server stops. That ends every request.
	drain    context.Context
	kubelets *http.Transport // with the server's certificate
	workload *http.Transport // to pods and services, without a certificate
}

// New returns a Proxy. Its requests end when ctx does. log gets the messages of net/http. The caller must Close it.
func New(ctx context.Context, o KubeletOptions, objects serviceresolver.Reader, log *log.Logger) *Proxy {
	if len(o.AddressTypes) == 0 {
		o.AddressTypes = DefaultKubeletAddressTypes
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: DialTimeout}).DialContext
	}
	transport := func(tc *tls.Config) *http.Transport {
		protocols := &http.Protocols{}
		protocols.SetHTTP1(true)
		return &http.Transport{
			DialContext: o.Dial, TLSClientConfig: tc, Protocols: protocols,
			TLSHandshakeTimeout: DialTimeout, DisableCompression: true, MaxIdleConnsPerHost: 2,
			IdleConnTimeout: time.Minute,
		}
	}
	kubelets := &tls.Config{RootCAs: o.CAs, InsecureSkipVerify: o.CAs == nil}
	if o.Certificate != nil {
		kubelets.Certificates = []tls.Certificate{*o.Certificate}
	}
	return &Proxy{
		objects: objects, log: log, addressTypes: o.AddressTypes, drain: ctx,
		kubelets: transport(kubelets), workload: transport(&tls.Config{InsecureSkipVerify: true}),
	}
}

// Close closes idle connections.
func (px *Proxy) Close() {
	px.kubelets.CloseIdleConnections()
	px.workload.CloseIdleConnections()
}

// Serve serves a request to one of the subresources log, exec, attach, portforward and proxy.
func (px *Proxy) Serve(w http.ResponseWriter, r *Request) error {
	switch r.Subresource {
	case "log":
		return px.podLog(w, r)
	case "exec", "attach", "portforward":
		return px.podStream(w, r)
	case "proxy":
		return px.forward(w, r)
	}
	return apierrors.NewMethodNotSupported(r.Resource.GroupResource(), r.Method)
}
