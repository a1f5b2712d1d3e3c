// Package clusterdns publishes the DNS servers that node agents run for their pods as the Service
// kube-system/kube-dns.
//
// An agent reports that its server answers, by the condition coxswain.dev/DNSReady of its Node. It does not report the
// server's address: that is the first address of the Node's podCIDR, where the router of its pods is, so that a node
// cannot name another machine's. Each Node that is Ready and has the condition is an endpoint with a hint for itself.
// Proxies therefore send the questions of a node's pods to the server of that node, and to all others while it is not
// ready (the effect of trafficDistribution: PreferSameNode).
//
// The Service is created at the tenth cluster IP when the first Node reports a server. A Service of that name without
// our label, such as the one of CoreDNS's chart, is left alone and gets no endpoints.
package clusterdns

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/endpointslices"
)

// Ready is the condition that a Node's agent reports while its DNS server answers.
const Ready corev1.NodeConditionType = "coxswain.dev/DNSReady"

// Pods find a server at this Service, which has the name that all charts of DNS servers give it.
const (
	serviceName = "kube-dns"
	key         = metav1.NamespaceSystem + "/" + serviceName
	port        = 53
)

// Manager marks the Service and its EndpointSlices as this controller's, and managedBy is the Service's label for it.
const (
	Manager   = "dns.coxswain.dev"
	managedBy = "app.kubernetes.io/managed-by"
)

// defaultRange is the ServiceCIDR of the API server's flags.
const defaultRange = "kubernetes"

// maxPerSlice bounds the endpoints of a slice, as the endpointslice controller does by default.
const maxPerSlice = 100

type publisher struct {
	*controller.Controller
	env      *controller.Env
	nodes    corelisters.NodeLister
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	ranges   networkinglisters.ServiceCIDRLister
	expected controller.VersionExpectations

	serviceInformer, sliceInformer cache.SharedIndexInformer
}

// New returns the controller. Its only key is the Service's.
func New(env *controller.Env) (*controller.Controller, error) {
	core, discovery := env.Informers.Core().V1(), env.Informers.Discovery().V1()
	ranges := env.Informers.Networking().V1().ServiceCIDRs()
	p := &publisher{
		env: env, nodes: core.Nodes().Lister(), services: core.Services().Lister(),
		slices: discovery.EndpointSlices().Lister(), ranges: ranges.Lister(),
		serviceInformer: core.Services().Informer(), sliceInformer: discovery.EndpointSlices().Informer(),
	}
	p.Controller = controller.New(env, "cluster-dns", p.reconcile)
	controller.Watch(p.Controller, core.Nodes().Informer(), controller.Handler[*corev1.Node]{
		Add:    func(n *corev1.Node) { p.nodeChanged(nil, n) },
		Update: p.nodeChanged,
		Delete: func(n *corev1.Node) { p.nodeChanged(n, nil) },
	})
	ofService := func(s *corev1.Service) {
		if s.Name == serviceName && s.Namespace == metav1.NamespaceSystem {
			p.Enqueue(key)
		}
	}
	controller.Watch(p.Controller, p.serviceInformer, controller.Handler[*corev1.Service]{
		Add: ofService, Update: func(_, s *corev1.Service) { ofService(s) }, Delete: ofService,
	})
	ofSlice := func(s *discoveryv1.EndpointSlice) {
		if s.Namespace == metav1.NamespaceSystem && s.Labels[discoveryv1.LabelManagedBy] == Manager {
			p.Enqueue(key)
		}
	}
	controller.Watch(p.Controller, p.sliceInformer, controller.Handler[*discoveryv1.EndpointSlice]{
		Add: ofSlice, Delete: ofSlice, Update: func(old, s *discoveryv1.EndpointSlice) { ofSlice(old); ofSlice(s) },
	})
	controller.Watch(p.Controller, ranges.Informer(), controller.Handler[*networkingv1.ServiceCIDR]{
		Add: func(r *networkingv1.ServiceCIDR) {
			if r.Name == defaultRange {
				p.Enqueue(key)
			}
		},
	})
	return p.Controller, nil
}

// nodeChanged wakes the controller if a change of a Node changes its endpoint. Nodes change often, heartbeats included.
func (p *publisher) nodeChanged(old, node *corev1.Node) {
	if serverOf(old) != serverOf(node) {
		p.Enqueue(key)
	}
}

// server is the DNS server of a Node; the zero server is none.
type server struct {
	address    netip.Addr
	node, zone string
}

// serverOf returns the DNS server that a Node's pods can ask; the zero server if there is none.
func serverOf(node *corev1.Node) server {
	if node == nil || node.DeletionTimestamp != nil || !isTrue(node, corev1.NodeReady) || !isTrue(node, Ready) {
		return server{}
	}
	for _, text := range node.Spec.PodCIDRs {
		if cidr, err := netip.ParsePrefix(text); err == nil && cidr.Addr().Is4() {
			return server{cidr.Masked().Addr(), node.Name, node.Labels[corev1.LabelTopologyZone]}
		}
	}
	return server{}
}

func isTrue(node *corev1.Node, condition corev1.NodeConditionType) bool {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == condition {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (p *publisher) reconcile(ctx context.Context, _ string) error {
	if !p.expected.Satisfied(key) {
		return nil // the event of our own write wakes it again
	}
	endpoints, err := p.endpoints()
	if err != nil {
		return err
	}
	existing, err := endpointslices.Existing(p.slices, metav1.NamespaceSystem, serviceName, Manager)
	if err != nil {
		return err
	}
	service, err := p.services.Services(metav1.NamespaceSystem).Get(serviceName)
	switch {
	case apierrors.IsNotFound(err):
		if _, err := endpointslices.Delete(ctx, p.env.Client(), existing); err != nil || len(endpoints) == 0 {
			return err
		}
		return p.createService(ctx)
	case err != nil:
		return err
	case service.DeletionTimestamp != nil || service.Labels[managedBy] != Manager:
		_, err := endpointslices.Delete(ctx, p.env.Client(), existing)
		return err
	}
	changes := endpointslices.Reconcile(endpointslices.Owner{
		Namespace: metav1.NamespaceSystem, Name: serviceName, MaxEndpoints: maxPerSlice, Placeholder: true,
		Reference: *metav1.NewControllerRef(service, corev1.SchemeGroupVersion.WithKind("Service")),
		Labels:    map[string]string{discoveryv1.LabelServiceName: serviceName, discoveryv1.LabelManagedBy: Manager},
	}, existing, endpointslices.Desired{discoveryv1.AddressTypeIPv4: endpoints})
	return changes.Finalize(ctx, p.env.Client(), time.Time{}, func(s *discoveryv1.EndpointSlice) {
		p.expected.Expect(key, p.sliceInformer, s.ResourceVersion)
	})
}

// endpoints returns an endpoint for each Node that has a DNS server.
func (p *publisher) endpoints() (endpointslices.PortGroups, error) {
	nodes, err := p.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	endpoints := endpointslices.PortGroups{}
	for _, node := range nodes {
		if s := serverOf(node); s != (server{}) {
			endpoints.Add(endpointPorts(), s.endpoint())
		}
	}
	return endpoints, nil
}

func endpointPorts() []discoveryv1.EndpointPort {
	return []discoveryv1.EndpointPort{
		{Name: new("dns"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(port))},
		{Name: new("dns-tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(port))},
	}
}

func (s server) endpoint() discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses:  []string{s.address.String()},
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		NodeName:   &s.node,
		Hints:      &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: s.node}}},
	}
	if s.zone != "" {
		e.Zone = &s.zone
	}
	return e
}

// createService creates the Service as kubeadm does, except that it has no selector and prefers the client's own node.
func (p *publisher) createService(ctx context.Context) error {
	address, err := p.clusterIP()
	if err != nil || !address.IsValid() {
		return err
	}
	created, err := p.env.Client().CoreV1().Services(metav1.NamespaceSystem).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: serviceName, Labels: map[string]string{
			"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
			managedBy: Manager,
		}},
		Spec: corev1.ServiceSpec{
			ClusterIP: address.String(),
			Ports: []corev1.ServicePort{
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: port},
				{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: port},
			},
			TrafficDistribution: new(corev1.ServiceTrafficDistributionPreferSameNode),
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // its event wakes the controller
	}
	if err != nil {
		return fmt.Errorf("create service %s: %w", key, err)
	}
	p.expected.Expect(key, p.serviceInformer, created.ResourceVersion)
	return nil
}

// clusterIP returns the tenth address of the first IPv4 range of Services, which is the cluster's DNS server by
// custom. It is not valid while the API server has not stored its ranges (their event wakes the controller), and
// where none is IPv4.
func (p *publisher) clusterIP() (netip.Addr, error) {
	ranges, err := p.ranges.Get(defaultRange)
	if apierrors.IsNotFound(err) {
		return netip.Addr{}, nil
	}
	if err != nil {
		return netip.Addr{}, err
	}
	for _, text := range ranges.Spec.CIDRs {
		cidr, err := netip.ParsePrefix(text)
		if err != nil || !cidr.Addr().Is4() {
			continue
		}
		address := cidr.Masked().Addr()
		for range 10 {
			address = address.Next()
		}
		return address, nil
	}
	return netip.Addr{}, nil
}
