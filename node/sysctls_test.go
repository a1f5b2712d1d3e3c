package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func sysctlPod(name, sysctl string) *corev1.Pod {
	pod := boundPod(name, "node-0")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: sysctl, Value: "1"}}}
	return pod
}

func TestSysctls_ThatAreForbiddenRejectThePod(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Options{AllowedUnsafeSysctls: []string{"kernel.msg*", "net/core/somaxconn", "user.*"}})
	c.create(sysctlPod("safe", "net/ipv4/ip_unprivileged_port_start"))
	c.create(sysctlPod("allowed", "kernel.msgmax"))
	c.create(sysctlPod("exact", "net.core.somaxconn"))
	refused := map[string]string{
		"unsafe": `"net.ipv4.ip_forward" not allowlisted`, "machine": `"kernel.core_pattern" not allowlisted`,
		"shared":  `"kernel.msgmax" not allowed with host IPC enabled`,
		"network": `"net.ipv4.tcp_syncookies" not allowed with host Net enabled`,
		"users":   `"user.max_net_namespaces" not allowed with host User enabled`,
	}
	c.create(sysctlPod("unsafe", "net.ipv4.ip_forward"))
	c.create(sysctlPod("machine", "kernel/core_pattern"))
	shared := sysctlPod("shared", "kernel.msgmax")
	shared.Spec.HostIPC = true
	c.create(shared)
	network := sysctlPod("network", "net.ipv4.tcp_syncookies")
	network.Spec.HostNetwork = true
	c.create(network)
	c.create(sysctlPod("users", "user.max_net_namespaces"))
	c.later(time.Second, "all are settled", func() bool {
		for name := range refused {
			if c.pod(name).Status.Phase != corev1.PodFailed {
				return false
			}
		}
		return ready(c.pod("safe")) && ready(c.pod("allowed")) && ready(c.pod("exact"))
	})
	for name, why := range refused {
		require.Equal(t, "SysctlForbidden", c.pod(name).Status.Reason)
		require.Equal(t, "Pod was rejected: forbidden sysctl: "+why, c.pod(name).Status.Message)
	}
}

func TestSysctls_WithoutNamespaceCannotBeAllowed(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"vm.swappiness": `--allowed-unsafe-sysctls: the sysctls "vm.swappiness" are not known to be namespaced`,
		"*":             `--allowed-unsafe-sysctls: the sysctls "*" are not known to be namespaced`,
		"net.*.x":       `--allowed-unsafe-sysctls: "net.*.x" has a * that is not at its end`,
	} {
		o := Options{AllowedUnsafeSysctls: []string{pattern}}
		require.EqualError(t, o.complete(), want)
	}
}
