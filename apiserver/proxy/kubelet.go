package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/status"
)

// KubeletOptions configure connections to nodes for logs, exec, attach, port-forward and proxying.
type KubeletOptions struct {
	// CAs verify the nodes' serving certificates (--kubelet-certificate-authority); nil does
	// not verify them, as in kube-apiserver.
	CAs *x509.CertPool
	// Certificate is the client certificate that the server presents to nodes (--kubelet-client-certificate);
	// may be nil.
	Certificate *tls.Certificate
	// AddressTypes are the types of node addresses to use, the preferred first
	// (--kubelet-preferred-address-types); nil is DefaultKubeletAddressTypes.
	AddressTypes []corev1.NodeAddressType
	// Dial opens connections to nodes, pods and services; nil dials them.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// DefaultKubeletAddressTypes are kubeadm's: kube-apiserver's own begin with the host name, which does not
// resolve on most networks.
var DefaultKubeletAddressTypes = []corev1.NodeAddressType{
	corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS, corev1.NodeHostName,
}

// nodeHeader names the node to an agent that serves several. A kubelet serves one and ignores it.
const nodeHeader = "Coxswain-Node"

// DialTimeout limits the time that a node, a pod or a service may take to accept a connection.
const DialTimeout = 30 * time.Second

// unverified returns a transport to nodes that accepts any certificate (PodLogOptions.insecureSkipTLSVerifyBackend).
func (px *Proxy) unverified() *http.Transport {
	t := px.kubelets.Clone()
	t.TLSClientConfig.InsecureSkipVerify = true
	t.DisableKeepAlives = true
	return t
}

// kubeletAt returns the host and port of a node's agent.
func (px *Proxy) kubeletAt(ctx context.Context, nodeName string) (host, port string, err error) {
	obj, err := px.objects.Object(ctx, nodeKind, "", nodeName)
	if err != nil {
		return "", "", err
	}
	node := obj.(*corev1.Node)
	if host = preferredAddress(node, px.addressTypes); host == "" {
		return "", "", apierrors.NewInternalError(fmt.Errorf("no preferred addresses found; known addresses: %v",
			node.Status.Addresses))
	}
	n := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	if n == 0 {
		return "", "", status.Error(http.StatusBadGateway, "BadGateway",
			fmt.Sprintf("error dialing backend: the agent of node %q does not serve: the node's "+
				"status.daemonEndpoints.kubeletEndpoint has no port", nodeName))
	}
	return host, strconv.Itoa(int(n)), nil
}

func preferredAddress(node *corev1.Node, types []corev1.NodeAddressType) string {
	for _, t := range types {
		i := slices.IndexFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == t })
		if i >= 0 && node.Status.Addresses[i].Address != "" {
			return node.Status.Addresses[i].Address
		}
	}
	return ""
}

// kubelet returns the URL of a path at the agent of a pod's node.
func (px *Proxy) kubelet(ctx context.Context, pod *corev1.Pod, query url.Values, path ...string) (*url.URL, error) {
	host, port, err := px.kubeletAt(ctx, pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	u := &url.URL{Scheme: "https", Host: net.JoinHostPort(host, port), Path: "/", RawQuery: query.Encode()}
	return u.JoinPath(path...), nil
}

// AskAgent sends a GET to the agent of a node. The caller closes the response's body.
func (px *Proxy) AskAgent(ctx context.Context, node, path string) (*http.Response, error) {
	host, port, err := px.kubeletAt(ctx, node)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(host, port)+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set(nodeHeader, node)
	return px.kubelets.RoundTrip(req)
}
