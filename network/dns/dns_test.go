package dns

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/testenv"
)

// running is a server on loopback.
type running struct {
	t       testing.TB
	address string
	metrics *prometheus.Registry
}

// start runs a server until the test ends. It starts an upstream unless the options name some.
func start(t testing.TB, config *rest.Config, o Options) *running {
	t.Helper()
	if o.Sockets == nil {
		var err error
		o.Sockets, err = Listen([]string{"127.0.0.1:0"}, nil)
		require.NoError(t, err)
	}
	if o.Upstreams == nil {
		o.Upstreams = []string{upstream(t, nil).address}
	}
	r := &running{t: t, address: o.Sockets.Addresses()[0].String(), metrics: prometheus.NewRegistry()}
	o.Metrics = r.metrics
	ready := make(chan struct{})
	o.Ready = func() { close(ready) }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, config, o) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	select {
	case <-ready:
	case <-time.After(time.Minute):
		t.Fatal("the server is not ready")
	}
	return r
}

// ask sends a question over UDP or TCP.
func (r *running) ask(network, name string, qtype uint16) *dns.Msg {
	r.t.Helper()
	m, err := r.try(network, new(dns.Msg).SetQuestion(name, qtype))
	require.NoError(r.t, err, name)
	return m
}

func (r *running) try(network string, query *dns.Msg) (*dns.Msg, error) {
	m, _, err := (&dns.Client{Net: network, Timeout: 20 * time.Second}).Exchange(query, r.address)
	return m, err
}

// upstreamServer is the target of forwarded questions.
type upstreamServer struct{ address string }

// upstream runs a server that answers with handle; nil answers NXDOMAIN.
func upstream(t testing.TB, handle dns.HandlerFunc) *upstreamServer {
	t.Helper()
	if handle == nil {
		handle = func(w dns.ResponseWriter, q *dns.Msg) {
			_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeNameError))
		}
	}
	var packets net.PacketConn
	var streams net.Listener
	require.Eventually(t, func() bool {
		var err error
		packets, err = net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		if streams, err = net.Listen("tcp", packets.LocalAddr().String()); err != nil {
			_ = packets.Close()
		}
		return err == nil
	}, time.Minute, time.Millisecond)
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: handle}, {Listener: streams, Handler: handle}} {
		ended, started := make(chan error, 1), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { ended <- s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			_ = s.Shutdown()
			<-ended
		})
	}
	return &upstreamServer{address: packets.LocalAddr().String()}
}

// texts returns records as sorted text without their TTLs.
func texts(rrs []dns.RR) []string {
	list := []string{}
	for _, rr := range rrs {
		if rr.Header().Rrtype != dns.TypeOPT {
			list = append(list, strings.ReplaceAll(strings.Replace(rr.String(), fmt.Sprintf("\t%d\t", rr.Header().Ttl), " ", 1), "\t", " "))
		}
	}
	slices.Sort(list)
	return list
}

// create creates objects in the API.
func create(t testing.TB, client kubernetes.Interface, objects ...any) {
	t.Helper()
	ctx := t.Context()
	for _, o := range objects {
		var err error
		switch o := o.(type) {
		case *corev1.Namespace:
			_, err = client.CoreV1().Namespaces().Create(ctx, o, metav1.CreateOptions{})
		case *corev1.Service:
			_, err = client.CoreV1().Services(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		case *discoveryv1.EndpointSlice:
			_, err = client.DiscoveryV1().EndpointSlices(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		}
		require.NoError(t, err)
	}
}

func makeService(namespace, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	s.Spec = corev1.ServiceSpec{ClusterIP: ip, Ports: ports, Type: corev1.ServiceTypeClusterIP}
	if ip != "" {
		s.Spec.ClusterIPs = []string{ip}
	}
	return s
}

func makeExternal(namespace, name, target string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: target}}
}

func servicePort(name string, protocol corev1.Protocol, port int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: protocol, Port: port}
}

func makeSlice(namespace, name, service string, ports []discoveryv1.EndpointPort,
	endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: ports, Endpoints: endpoints}
	for _, e := range endpoints {
		if strings.Contains(e.Addresses[0], ":") {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
	}
	return s
}

func endpointPort(name string, port int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: ptr.To(corev1.ProtocolTCP)}
}

func ready(ip, hostname string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}
	if hostname != "" {
		e.Hostname = &hostname
	}
	return e
}

func unready(ip, hostname string) discoveryv1.Endpoint {
	e := ready(ip, hostname)
	e.Conditions.Ready = ptr.To(false)
	return e
}

func clientOf(t testing.TB, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

func apiServer(t testing.TB) *rest.Config { return testenv.Start(t, testenv.APIServerOnly()) }

var deleteNow = metav1.DeleteOptions{}

func eventually(t testing.TB, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, time.Minute, 5*time.Millisecond)
}
