package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// KubeletOptions say how nodes are reached for logs, exec, attach, port-forward and proxying.
type KubeletOptions struct {
	// CAs verify the nodes' serving certificates (--kubelet-certificate-authority); nil does
	// not verify them, as in kube-apiserver.
	CAs *x509.CertPool
	// Certificate is what the server shows to nodes (--kubelet-client-certificate); may be nil.
	Certificate *tls.Certificate
	// AddressTypes are which of a node's addresses to take, the best first
	// (--kubelet-preferred-address-types); nil is DefaultKubeletAddressTypes.
	AddressTypes []corev1.NodeAddressType
	// Dial opens connections to nodes, pods and services; nil dials them.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// DefaultKubeletAddressTypes are those that kubeadm sets: kube-apiserver's own begin with the host name, which on
// most networks nobody resolves.
var DefaultKubeletAddressTypes = []corev1.NodeAddressType{
	corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS, corev1.NodeHostName,
}

// nodeHeader tells an agent that is several nodes which of them is meant. A kubelet is one, and does not read it.
const nodeHeader = "Coxswain-Node"

// backends are the ways to what is behind the server. They speak HTTP/1.1 alone: HTTP/2 has
// no connection to upgrade.
type backends struct {
	kubelets *http.Transport // with the server's certificate
	workload *http.Transport // pods and services, which are told nothing of who the server is
}

// dialTimeout is how long a node, a pod or a service may take to accept a connection.
const dialTimeout = 30 * time.Second

func newBackends(o KubeletOptions) backends {
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	transport := func(tc *tls.Config) *http.Transport {
		protocols := &http.Protocols{}
		protocols.SetHTTP1(true)
		return &http.Transport{
			DialContext: o.Dial, TLSClientConfig: tc, Protocols: protocols,
			TLSHandshakeTimeout: dialTimeout, DisableCompression: true, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute,
		}
	}
	kubelets := &tls.Config{RootCAs: o.CAs, InsecureSkipVerify: o.CAs == nil}
	if o.Certificate != nil {
		kubelets.Certificates = []tls.Certificate{*o.Certificate}
	}
	return backends{transport(kubelets), transport(&tls.Config{InsecureSkipVerify: true})}
}

// unverified is a transport to nodes that takes any certificate, for who asks for that
// (PodLogOptions.insecureSkipTLSVerifyBackend).
func (b *backends) unverified() *http.Transport {
	t := b.kubelets.Clone()
	t.TLSClientConfig.InsecureSkipVerify = true
	t.DisableKeepAlives = true
	return t
}

func (b *backends) close() {
	b.kubelets.CloseIdleConnections()
	b.workload.CloseIdleConnections()
}

// kubeletAt is where the agent of a node serves.
func (s *Server) kubeletAt(ctx context.Context, nodeName string) (host, port string, err error) {
	res := s.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("Node"))
	obj, err := s.object(ctx, res, "", nodeName)
	if err != nil {
		return "", "", err
	}
	node := obj.(*corev1.Node)
	if host = preferredAddress(node, s.Kubelet.AddressTypes); host == "" {
		return "", "", apierrors.NewInternalError(fmt.Errorf("no preferred addresses found; known addresses: %v", node.Status.Addresses))
	}
	n := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	if n == 0 {
		return "", "", statusError(http.StatusBadGateway, "BadGateway",
			fmt.Sprintf("error dialing backend: the agent of node %q does not serve: the node's status.daemonEndpoints.kubeletEndpoint has no port", nodeName))
	}
	return host, strconv.Itoa(int(n)), nil
}

func preferredAddress(node *corev1.Node, types []corev1.NodeAddressType) string {
	for _, t := range types {
		at := slices.IndexFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == t })
		if at >= 0 && node.Status.Addresses[at].Address != "" {
			return node.Status.Addresses[at].Address
		}
	}
	return ""
}

// kubelet is the URL of a path at the node on which a pod runs.
func (s *Server) kubelet(ctx context.Context, pod *corev1.Pod, query url.Values, path ...string) (*url.URL, error) {
	host, port, err := s.kubeletAt(ctx, pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	u := &url.URL{Scheme: "https", Host: net.JoinHostPort(host, port), Path: "/", RawQuery: query.Encode()}
	return u.JoinPath(path...), nil
}

// object reads one object of a built-in kind, as memory has it.
func (s *Server) object(ctx context.Context, res *api.Resource, namespace, name string) (api.Object, error) {
	o, err := s.collection(res).Get(ctx, namespace, name, storage.At{Any: true})
	if errors.Is(err, storage.ErrNotFound) { // memory may be behind
		o, err = s.collection(res).Get(ctx, namespace, name, storage.At{})
	}
	if errors.Is(err, storage.ErrNotFound) {
		return nil, apierrors.NewNotFound(res.GroupResource(), name)
	}
	if err != nil {
		return nil, err
	}
	return decode(res, o)
}
