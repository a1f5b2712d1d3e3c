package node

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"
)

// safeSysctls are those that every pod may set: they are the pod's alone, and take nothing from others.
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

// checkSysctls refuses patterns of what is not a pod's own but the machine's.
func checkSysctls(patterns []string) error {
	for _, pattern := range patterns {
		if at := strings.IndexByte(pattern, '*'); at >= 0 && at < len(pattern)-1 {
			return fmt.Errorf("--allowed-unsafe-sysctls: %q has a * that is not at its end", pattern)
		}
		if namespace, _, _ := sysctl.GetNamespace(pattern); namespace == sysctl.UnknownNamespace {
			return fmt.Errorf("--allowed-unsafe-sysctls: the sysctls %q are not known to be namespaced", pattern)
		}
	}
	return nil
}

// sysctlsOf are those that a pod wants to be set.
func sysctlsOf(pod *corev1.Pod) []corev1.Sysctl {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.Sysctls
}

// refuseSysctls keeps pods away that would change what is not theirs.
func refuseSysctls(a *agent, _ *hostedNode, pod *corev1.Pod) *refusal {
	for _, s := range sysctlsOf(pod) {
		if why := a.forbids(sysctl.NormalizeName(s.Name), pod); why != "" {
			return &refusal{"SysctlForbidden", "forbidden sysctl: " + why}
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
		sysctl.UTSNamespace: pod.Spec.HostNetwork, sysctl.UserNamespace: true, // there is none but the machine's
	}
	if shared[namespace] {
		return fmt.Sprintf("%q not allowed with host %s enabled", name, namespace)
	}
	return ""
}
