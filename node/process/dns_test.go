package process

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const machineResolvConf = "# made by hand\nsearch old.example\nsearch corp.example. example.com\nnameserver 192.0.2.1\n" +
	"nameserver 192.0.2.2\noptions timeout:1 ndots:2\n"

func TestResolvConf_FollowsThePolicy(t *testing.T) {
	t.Parallel()
	const machine = "search corp.example example.com\nnameserver 192.0.2.1\nnameserver 192.0.2.2\noptions timeout:1 ndots:2\n"
	const cluster = "search ns.svc.cluster.local svc.cluster.local cluster.local corp.example example.com\n" +
		"nameserver 10.96.0.10\noptions ndots:5\n"
	config := &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "10.96.0.10"},
		Searches: []string{"my.example", "cluster.local"},
		Options:  []corev1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("1")}, {Name: "edns0"}}}
	for name, test := range map[string]struct {
		policy  corev1.DNSPolicy
		host    bool
		servers []string
		config  *corev1.PodDNSConfig
		want    string
		reasons []string
	}{
		"ClusterFirst":                       {corev1.DNSClusterFirst, false, []string{"10.96.0.10"}, nil, cluster, nil},
		"ClusterFirst in the host's network": {corev1.DNSClusterFirst, true, []string{"10.96.0.10"}, nil, machine, nil},
		"ClusterFirstWithHostNet":            {corev1.DNSClusterFirstWithHostNet, true, []string{"10.96.0.10"}, nil, cluster, nil},
		"ClusterFirst without servers":       {corev1.DNSClusterFirst, false, nil, nil, machine, []string{"MissingClusterDNS"}},
		"Default":                            {corev1.DNSDefault, false, []string{"10.96.0.10"}, nil, machine, nil},
		"None": {corev1.DNSNone, false, []string{"10.96.0.10"}, config,
			"search my.example cluster.local\nnameserver 1.1.1.1\nnameserver 10.96.0.10\noptions ndots:1 edns0\n", nil},
		"ClusterFirst with dnsConfig": {corev1.DNSClusterFirst, false, []string{"10.96.0.10"}, config,
			"search ns.svc.cluster.local svc.cluster.local cluster.local corp.example example.com my.example\n" +
				"nameserver 10.96.0.10\nnameserver 1.1.1.1\noptions ndots:1 edns0\n", nil},
		"too many servers": {corev1.DNSNone, false, nil, &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"}},
			"nameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\n", []string{"DNSConfigForming"}},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
		pod.Spec.DNSPolicy, pod.Spec.HostNetwork, pod.Spec.DNSConfig = test.policy, test.host, test.config
		got, warnings := podResolver(pod, parseResolver(machineResolvConf), test.servers, "cluster.local")
		require.Equal(t, test.want, got.String(), name)
		var reasons []string
		for _, w := range warnings {
			reasons = append(reasons, w.reason)
		}
		require.Equal(t, test.reasons, reasons, name)
	}
}

func TestResolvConf_KeepsSearchesThatFit(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("s%d.example", i))
	}
	require.Equal(t, many[:32], fittingSearches(many))
	require.Equal(t, many[:32], fittingSearches(many[:32]))
	long := []string{strings.Repeat("a", 1024), strings.Repeat("b", 1023), "c"}
	require.Equal(t, long[:2], fittingSearches(long)) // 2,048 characters with the blank
	require.Equal(t, long[:1], fittingSearches([]string{long[0], long[1] + "b"}))
}

func TestHostname_FollowsSubdomainAndOverride(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a-0"}}
	name := func() string {
		name, err := kernelHostname(pod, "cluster.local")
		require.NoError(t, err)
		return name
	}
	require.Equal(t, "a-0", name())
	require.Contains(t, hosts(pod, "10.244.0.5", "cluster.local", ""), "\n10.244.0.5\ta-0\n")
	pod.Spec.Hostname, pod.Spec.Subdomain = "db", "sub"
	require.Equal(t, "db", name())
	require.Contains(t, hosts(pod, "10.244.0.5", "cluster.local", ""), "\n10.244.0.5\tdb.sub.ns.svc.cluster.local\tdb\n")
	pod.Spec.SetHostnameAsFQDN = ptr.To(true)
	require.Equal(t, "db.sub.ns.svc.cluster.local", name())
	pod.Spec.Subdomain = strings.Repeat("s", 50)
	_, err := kernelHostname(pod, "cluster.local")
	require.ErrorContains(t, err, "is too long (64 characters is the max, 74 characters requested)")
	pod.Spec.HostnameOverride = ptr.To("other.example")
	require.Equal(t, "other.example", name())
}

func TestHosts_HaveAliasesWithHostNetworkToo(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a-0"}}
	pod.Spec.HostAliases = []corev1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"one", "other"}}}
	const machine = "127.0.0.1\tlocalhost machine\n"
	own := hosts(pod, "10.244.0.5", "cluster.local", machine)
	require.NotContains(t, own, "machine")
	require.Contains(t, own, "192.0.2.7\tone\tother\n")
	pod.Spec.HostNetwork = true
	require.Equal(t, "# Kubernetes-managed hosts file (host network).\n"+machine+
		"\n# Entries added by HostAliases.\n192.0.2.7\tone\tother\n",
		hosts(pod, "192.0.2.1", "cluster.local", machine))
}
