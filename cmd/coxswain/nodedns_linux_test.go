package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/network/dns"
	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/router"
	"github.com/coxswain-dev/coxswain/testenv"
)

func newTestMachine(t *testing.T) *os.File {
	t.Helper()
	machine, err := netns.New()
	if errors.Is(err, fs.ErrPermission) {
		t.Skipf("SKIPPED: pods' networks need root: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = machine.Close() })
	return machine
}

// openTestRouter opens a router on a machine.
func openTestRouter(t *testing.T, machine *os.File) *router.Router {
	t.Helper()
	var r *router.Router
	require.NoError(t, netns.Do(machine, func() (err error) {
		r, err = router.Open(nil, router.Options{})
		return err
	}))
	t.Cleanup(r.Close)
	return r
}

func addTestNode(t *testing.T, machine *os.File, r *router.Router, device, subnet string) {
	t.Helper()
	require.NoError(t, netns.Do(machine, func() error { return r.AddNode(device, netip.MustParsePrefix(subnet)) }))
}

// lookUp queries a DNS server in a network namespace for an address.
func lookUp(namespace *os.File, server, name string) (address string, err error) {
	err = netns.Do(namespace, func() error {
		conn, err := net.Dial("udp", server)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		reply, _, err := new(miekg.Client).ExchangeWithConn(new(miekg.Msg).SetQuestion(name, miekg.TypeA),
			&miekg.Conn{Conn: conn})
		if err != nil {
			return err
		}
		if len(reply.Answer) != 1 {
			return fmt.Errorf("%s: %v", miekg.RcodeToString[reply.Rcode], reply.Answer)
		}
		address = reply.Answer[0].(*miekg.A).A.String()
		return nil
	})
	return address, err
}

func TestNodeDNS_ServesOnlyOnTheFirstAddressOfEachNode(t *testing.T) {
	t.Parallel()
	machine := newTestMachine(t)
	r := openTestRouter(t, machine)
	config := testenv.Start(t, testenv.APIServerOnly())
	service, err := kubernetes.NewForConfigOrDie(config).CoreV1().Services("default").Get(t.Context(), "kubernetes",
		metav1.GetOptions{})
	require.NoError(t, err)

	changed := make(chan struct{}, 100)
	d := newNodeDNS(r, func() { changed <- struct{}{} })
	router := protectedRouter{Router: r, dns: d}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- d.run(ctx, testenv.User(t, config, "coxswain:network"), dns.Options{Upstreams: []string{"127.0.0.1:1"}})
	}()
	requireReady := func() {
		t.Helper()
		require.Equal(t, corev1.ConditionFalse, router.Conditions()[0].Status, "a new address has no server yet")
		select {
		case <-changed:
		case <-time.After(time.Minute):
		}
		require.Equal(t, []corev1.NodeCondition{{Type: "coxswain.dev/DNSReady", Status: corev1.ConditionTrue,
			Reason: "DNSServerReady", Message: "the DNS server answers pods of this node"}}, router.Conditions())
	}
	require.Equal(t, "DNSServerStarting", router.Conditions()[0].Reason, "there is no Node")
	for i, subnet := range []string{"10.77.1.0/24", "10.77.2.0/24"} {
		addTestNode(t, machine, r, fmt.Sprint("coxdns", i), subnet)
		requireReady()
	}
	for _, server := range []string{"10.77.1.0:53", "10.77.2.0:53"} {
		address, err := lookUp(r.Namespace(), server, "kubernetes.default.svc.cluster.local.")
		require.NoError(t, err)
		require.Equal(t, service.Spec.ClusterIP, address)
	}
	// Egress policies apply to the router's own addresses, but not to this one.
	_, err = lookUp(r.Namespace(), "169.254.0.1:53", "kubernetes.default.svc.cluster.local.")
	require.Error(t, err)
	stop()
	require.NoError(t, <-ended)
	require.Empty(t, protectedRouter{Router: r}.Conditions(), "an agent without a server reports none")
}

func TestNodeDNS_ReportsItsError(t *testing.T) {
	t.Parallel()
	machine := newTestMachine(t)
	r := openTestRouter(t, machine)
	addTestNode(t, machine, r, "coxdns", "10.77.3.0/24")
	var other net.PacketConn
	require.NoError(t, netns.Do(r.Namespace(), func() (err error) {
		other, err = net.ListenPacket("udp", "10.77.3.0:53")
		return err
	}))
	defer func() { _ = other.Close() }()
	d := newNodeDNS(r, func() {})
	require.ErrorContains(t, d.run(t.Context(), nil, dns.Options{}), "address already in use")
	require.Equal(t, "DNSServerEnded", d.condition().Reason)
	require.Equal(t, corev1.ConditionFalse, d.condition().Status)
	require.Contains(t, d.condition().Message, "10.77.3.0:53")
}
