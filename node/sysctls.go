package node

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"
)

// safeSysctls are sysctls that every pod may set: they affect only the pod, and cannot harm others.
// https://kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster/#safe-and-unsafe-sysctls
var safeSysctls = []string{
	"kernel.shm_rmid_forced",
	"net.ipv4.ip_local_port_range",
	"net.ipv4.tcp_syncookies",
	"net.ipv4.ping_group_range",
	"net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ip_local_reserved_ports",
	"net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes",
	"net.ipv4.tcp_rmem",
	"net.ipv4.tcp_wmem",
}

// checkSysctls returns an error for patterns of sysctls that are not namespaced.
func checkSysctls(patterns []string) error {
	for _, pattern := range patterns {
		if star := strings.IndexByte(pattern, '*'); star >= 0 && star < len(pattern)-1 {
			return fmt.Errorf("--allowed-unsafe-sysctls: %q has a * that is not at its end", pattern)
		}
		if namespace, _, _ := sysctl.GetNamespace(pattern); namespace == sysctl.UnknownNamespace {
			return fmt.Errorf("--allowed-unsafe-sysctls: the sysctls %q are not known to be namespaced", pattern)
		}
	}
	return nil
}

// sysctlsOf returns the sysctls of a pod's spec.
func sysctlsOf(pod *corev1.Pod) []corev1.Sysctl {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.Sysctls
}

// rejectSysctls keeps pods off a node that would set sysctls which they may not.
func rejectSysctls(a *agent, _ *hostedNode, pod *corev1.Pod) *rejection {
	for _, s := range sysctlsOf(pod) {
		if reason := a.forbids(sysctl.NormalizeName(s.Name), pod); reason != "" {
			return &rejection{"SysctlForbidden", "forbidden sysctl: " + reason}
		}
	}
	return nil
}

func (a *agent) forbids(name string, pod *corev1.Pod) string {
	allowed := slices.Contains(safeSysctls, name) ||
		slices.ContainsFunc(a.AllowedUnsafeSysctls, func(pattern string) bool {
			prefix, isPrefix := strings.CutSuffix(sysctl.NormalizeName(pattern), "*")
			return isPrefix && strings.HasPrefix(name, prefix) || name == prefix
		})
	namespace, _, _ := sysctl.GetNamespace(name)
	if !allowed || namespace == sysctl.UnknownNamespace {
		return fmt.Sprintf("%q not allowlisted", name)
	}
	shared := map[sysctl.Namespace]bool{
		sysctl.NetNamespace: pod.Spec.HostNetwork, sysctl.IPCNamespace: pod.Spec.HostIPC,
		sysctl.UTSNamespace: pod.Spec.HostNetwork, sysctl.UserNamespace: true, // pods have none of their own
	}
	if shared[namespace] {
		return fmt.Sprintf("%q not allowed with host %s enabled", name, namespace)
	}
	return ""
}
