package csrapproving

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const (
	// controlPlaneLabel is set by an administrator on a Node that shares a machine, and thus addresses, with an
	// API server. Nodes may not set it (NodeRestriction).
	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
	// agentAnnotation names the Node whose serving certificate this Node's agent presents, if one agent runs
	// several Nodes at one address. Only the Node's own agent and administrators can write it, so it is the
	// Node's consent to share its address.
	agentAnnotation = "coxswain.dev/agent"
	// clusterDomain is the default of --cluster-domain.
	clusterDomain = "cluster.local"
)

// claims looks up the names and addresses that are in use elsewhere in the cluster.
type claims struct {
	nodes      corelisters.NodeLister
	namespaces corelisters.NamespaceLister
	services   corelisters.ServiceLister
	ranges     networkinglisters.ServiceCIDRLister
	slices     discoverylisters.EndpointSliceLister
	servers    []host // API servers
	// certificate is Env.ServerCertificate.
	certificate func(context.Context) (*x509.Certificate, error)
}

func newClaims(env *controller.Env, c *controller.Controller) claims {
	core, ranges := env.Informers.Core().V1(), env.Informers.Networking().V1().ServiceCIDRs()
	endpoints := env.Informers.Discovery().V1().EndpointSlices()
	s := claims{nodes: core.Nodes().Lister(), namespaces: core.Namespaces().Lister(),
		services: core.Services().Lister(), ranges: ranges.Lister(), slices: endpoints.Lister(),
		certificate: env.ServerCertificate}
	for _, name := range env.Settings.Signing.APIServerNames {
		s.servers = append(s.servers, hostOf(name))
	}
	c.NeedsSync(core.Nodes().Informer().HasSyncedChecker())
	c.NeedsSync(core.Namespaces().Informer().HasSyncedChecker())
	c.NeedsSync(core.Services().Informer().HasSyncedChecker())
	c.NeedsSync(ranges.Informer().HasSyncedChecker())
	c.NeedsSync(endpoints.Informer().HasSyncedChecker())
	return s
}

// forbidden returns the first host that no node may have in a certificate, even if its status lists it, with
// the reason; "" if there is none. The request is denied, so that it does not wait for an administrator.
func (s claims) forbidden(hosts []host) (string, error) {
	cidrs, err := s.ranges.List(labels.Everything())
	if err != nil {
		return "", err
	}
	var ranges []netip.Prefix
	for _, c := range cidrs {
		for _, text := range c.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				ranges = append(ranges, p)
			}
		}
	}
	for _, h := range hosts {
		reason := forbiddenName(h.name)
		if h.address.IsValid() {
			reason = forbiddenAddress(h.address, ranges)
		}
		if reason != "" {
			return fmt.Sprintf("%s, %s", h, reason), nil
		}
	}
	return "", nil
}

func forbiddenAddress(a netip.Addr, ranges []netip.Prefix) string {
	switch {
	case a.IsUnspecified(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "which is the address of no machine"
	case a.IsLinkLocalUnicast():
		return "which is a link-local address"
	case slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) }):
		return "which is an address of Services"
	}
	return ""
}

func forbiddenName(name string) string {
	parts := strings.Split(name, ".")
	switch {
	case strings.Contains(name, "*"):
		return "which stands for many names"
	case parts[len(parts)-1] == "localhost":
		return "which is a name of every machine"
	case name == "kubernetes", name == "kubernetes.default":
		return "which is a name of the API server"
	case len(parts) > 2 && (slices.Contains(parts[2:], "svc") || slices.Contains(parts[2:], "pod")),
		name == clusterDomain, strings.HasSuffix(name, "."+clusterDomain):
		return "which is a name of Services or pods"
	}
	return ""
}

// conflictingNode returns a sentence about another Node that has one of the hosts, "" if none has. Either of
// the two Nodes may have written a wrong address.
func (s claims) conflictingNode(node *corev1.Node, hosts []host) (string, error) {
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		return "", err
	}
	for _, other := range nodes {
		if other.Name == node.Name || other.Annotations[agentAnnotation] == node.Name {
			continue
		}
		for _, a := range append(addressesOf(other), hostOf(other.Name)) {
			if slices.Contains(hosts, a) {
				return fmt.Sprintf("%s is also of Node %s", a, other.Name), nil
			}
		}
	}
	return "", nil
}

// conflictingService returns a sentence about a Service that has one of the hosts, "" if none has. A name of two
// labels belongs to a Service, even to a later one, if the second label is a namespace of the cluster: pods find
// web.shop by their search path.
func (s claims) conflictingService(hosts []host) (string, error) {
	for _, h := range hosts {
		service, namespace, ok := strings.Cut(h.name, ".")
		if !ok || service == "" {
			continue
		}
		if _, err := s.namespaces.Get(namespace); err == nil {
			return fmt.Sprintf("%s is also the name of a Service in the namespace %s", h, namespace), nil
		}
	}
	services, err := s.services.List(labels.Everything())
	if err != nil {
		return "", err
	}
	for _, service := range services {
		for _, a := range serviceAddresses(service) {
			if slices.Contains(hosts, hostOf(a)) {
				return fmt.Sprintf("%s is also of Service %s/%s", a, service.Namespace, service.Name), nil
			}
		}
	}
	return "", nil
}

// serviceAddresses returns the addresses that a Service was given. External IPs and the loadBalancerIP are not among
// them: an author of a Service could list those of all Nodes there, and keep them from their certificates.
func serviceAddresses(service *corev1.Service) []string {
	all := append([]string{service.Spec.ClusterIP}, service.Spec.ClusterIPs...)
	for _, in := range service.Status.LoadBalancer.Ingress {
		all = append(all, in.IP, in.Hostname)
	}
	return slices.DeleteFunc(all, func(a string) bool { return a == "" || a == corev1.ClusterIPNone })
}

// conflictingAPIServer returns a sentence about a host that belongs to an API server, "" if none does. Loopback
// addresses do: clients on the API server's machine reach it there.
func (s claims) conflictingAPIServer(ctx context.Context, hosts []host) (string, error) {
	servers := slices.Clone(s.servers)
	endpoints, err := s.slices.EndpointSlices(corev1.NamespaceDefault).List(
		labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: "kubernetes"}))
	if err != nil {
		return "", err
	}
	for _, slice := range endpoints {
		for _, e := range slice.Endpoints {
			for _, a := range e.Addresses {
				servers = append(servers, hostOf(a))
			}
		}
	}
	isServer, err := s.inCertificate(ctx)
	if err != nil {
		return "", err
	}
	for _, h := range hosts {
		if h.address.IsLoopback() || slices.Contains(servers, h) || isServer(h) {
			return fmt.Sprintf("%s is an address of an API server, and the Node does not have the label %s, by which "+
				"an administrator says that it is on the same machine", h, controlPlaneLabel), nil
		}
	}
	return "", nil
}

// inCertificate returns a function that reports whether the API server's certificate, as it is now, is for a host.
func (s claims) inCertificate(ctx context.Context) (func(host) bool, error) {
	if s.certificate == nil {
		return func(host) bool { return false }, nil
	}
	certificate, err := s.certificate(ctx)
	if err != nil {
		return nil, err
	}
	return func(h host) bool { return certificate != nil && certificate.VerifyHostname(h.String()) == nil }, nil
}
