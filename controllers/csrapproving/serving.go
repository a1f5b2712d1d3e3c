package csrapproving

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const (
	// undecidedFor bounds how long a request is retried while its Node does not exist yet or does not have all
	// addresses. It is the time that an agent waits for an answer before it sends a new request. After that an
	// administrator decides.
	undecidedFor = 10 * time.Minute
	// quietFor is the age of an undecided request before which no Event is recorded.
	quietFor = 30 * time.Second
)

// serving approves a serving certificate for the names and addresses in the Node's status. The node writes that
// status, so it proves little: names and addresses of the API server, of Services and of other nodes are not
// approved, unless controlPlaneLabel or agentAnnotation allows it.
func (a *approver) serving(ctx context.Context, r *certificatesv1.CertificateSigningRequest,
	request *x509.CertificateRequest) error {
	self := r.Spec.Username == request.Subject.CommonName && slices.Contains(r.Spec.Groups, "system:nodes")
	if !self {
		allowed, err := a.may(ctx, r, "nodeserver")
		if err != nil {
			return err
		}
		if !allowed {
			return nil // an administrator may still approve it
		}
	}
	if alone, err := a.servingAlone(); err != nil || !alone {
		return err // API server clients would trust the certificate: an administrator must approve it, as in Kubernetes
	}
	hosts := hostsOf(request)
	forbidden, err := a.cluster.forbidden(hosts)
	if err != nil {
		return err
	}
	if forbidden != "" {
		return a.deny(ctx, r, "A node's serving certificate must not be for "+forbidden+".")
	}
	doubt, err := a.doubt(ctx, strings.TrimPrefix(request.Subject.CommonName, "system:node:"), hosts)
	if err != nil {
		return err
	}
	if doubt == "" {
		return a.approve(ctx, r, "Auto approving kubelet serving certificate for the names and addresses of the Node.")
	}
	return a.undecided(r, doubt)
}

// undecided requeues the request until it is undecidedFor old, and records an Event with the reason once it is
// quietFor old.
func (a *approver) undecided(r *certificatesv1.CertificateSigningRequest, doubt string) error {
	age := a.clock.Since(r.CreationTimestamp.Time)
	if age >= quietFor {
		a.events.Event(r, corev1.EventTypeWarning, "NotApproved", "Not approved automatically: "+doubt)
	}
	if age >= undecidedFor {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", controller.ErrRequeue, r.Name, doubt)
}

// doubt returns the reason why only an administrator can decide about the hosts, "" if there is none.
func (a *approver) doubt(ctx context.Context, name string, hosts []host) (string, error) {
	node, err := a.client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("Node %s does not exist", name), nil
	}
	if err != nil {
		return "", err
	}
	own := addressesOf(node)
	for _, h := range hosts {
		if !slices.Contains(own, h) {
			return fmt.Sprintf("%s is not an address of Node %s", h, name), nil
		}
	}
	if doubt, err := a.cluster.conflictingNode(node, hosts); doubt != "" || err != nil {
		return doubt, err
	}
	if doubt, err := a.cluster.conflictingService(hosts); doubt != "" || err != nil {
		return doubt, err
	}
	if _, ok := node.Labels[controlPlaneLabel]; ok {
		return "", nil
	}
	return a.cluster.conflictingAPIServer(ctx, hosts)
}

// host is a lower-case name without a trailing dot, or an address.
type host struct {
	name    string
	address netip.Addr
}

func hostOf(text string) host {
	if address, err := netip.ParseAddr(text); err == nil {
		return host{address: address.Unmap().WithZone("")}
	}
	return host{name: strings.ToLower(strings.TrimSuffix(text, "."))}
}

func (h host) String() string {
	if h.address.IsValid() {
		return h.address.String()
	}
	return h.name
}

func hostsOf(request *x509.CertificateRequest) []host {
	var hosts []host
	for _, name := range request.DNSNames {
		hosts = append(hosts, hostOf(name))
	}
	for _, ip := range request.IPAddresses {
		hosts = append(hosts, hostOf(ip.String()))
	}
	return hosts
}

func addressesOf(node *corev1.Node) []host {
	hosts := make([]host, len(node.Status.Addresses))
	for i, a := range node.Status.Addresses {
		hosts[i] = hostOf(a.Address)
	}
	return hosts
}
