package node_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node"
)

// Pods of several Nodes of one machine have addresses in their Node's subnet and reach each other there. The Nodes
// leave no traces on the machine when they end.
func TestPrograms_OfSeveralNodesReachEachOther(t *testing.T) {
	t.Parallel()
	p := startPrograms(t, node.Options{Names: []string{"left-0", "right-0"}})
	serve := `exec perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 5, LocalPort => 8080, ReuseAddr => 1) or die $!; while ($c = $s->accept) { print $c "$ENV{NAME} to ", $c->peerhost, "\n"; close $c }'`
	addresses := map[string]string{}
	for _, name := range []string{"left-0", "right-0"} {
		p.run("serve-"+name, name, serve, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NAME", ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}}
		})
	}
	subnets := map[string]bool{}
	for _, name := range []string{"left-0", "right-0"} {
		p.eventually("the server of "+name+" has an address", func() bool {
			addresses[name] = p.pod("serve-" + name).Status.PodIP
			return addresses[name] != ""
		})
		p.eventually("the machine reaches it", func() bool {
			conn, err := net.DialTimeout("tcp", addresses[name]+":8080", time.Second)
			if err != nil {
				return false
			}
			defer conn.Close()
			text, _ := io.ReadAll(conn)
			return strings.HasPrefix(string(text), name+" to ")
		})
		n, err := p.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		_, subnet, err := net.ParseCIDR(n.Spec.PodCIDR)
		require.NoError(t, err)
		require.True(t, subnet.Contains(net.ParseIP(addresses[name])))
		subnets[n.Spec.PodCIDR] = true
	}
	require.Len(t, subnets, 2)
	for _, from := range []string{"left-0", "right-0"} {
		for _, to := range []string{"left-0", "right-0"} {
			ask := p.run(fmt.Sprintf("ask-%s-%s", from, to), from,
				`perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(PeerAddr => "`+addresses[to]+
					`:8080", Timeout => 20)->getline'; sleep 1000`)
			p.eventually("it has an address", func() bool { return p.pod(ask.Name).Status.PodIP != "" })
			p.logs(ask, to+" to "+p.pod(ask.Name).Status.PodIP)
		}
	}
}
