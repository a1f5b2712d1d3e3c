package usage

import (
	"path"
	"slices"

	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver/kubeflags"
)

// commandGroups are the headings of the program's own help page, with the commands below them.
var commandGroups = []struct {
	title string
	names []string
}{
	{"A whole control plane", []string{"up", "test-server"}},
	{"One part each", []string{"apiserver", "controllers", "etcd", "node", "scheduler"}},
	{"The cluster's network", []string{"cni", "dns", "ingress", "proxy"}},
	{"Tools", []string{"assets", "certs", "completion", "health", "help", "version"}},
}

func groupOf(command string) string {
	for _, group := range commandGroups {
		if slices.Contains(group.names, command) {
			return group.title
		}
	}
	return ""
}

// common are the flags that a page shows first, by command.
var common = map[string][]string{
	"coxswain up": {"data-dir", "secure-port", "bind-address", "nodes", "runtime", "service-lb-pool", "tls-san",
		"audit-policy-file", "clock", "log-level"},
	"coxswain apiserver": {"data-dir", "secure-port", "bind-address", "etcd-servers", "tls-san",
		"service-cluster-ip-range", "authorization-mode", "enable-admission-plugins", "audit-policy-file",
		"log-level"},
	"coxswain controllers": {"kubeconfig", "controllers", "leader-elect", "root-ca-file", "cluster-signing-cert-file",
		"service-account-private-key-file", "service-lb-pool", "node-monitor-grace-period", "metrics-bind-address",
		"log-level"},
	"coxswain scheduler": {"kubeconfig", "config", "leader-elect", "metrics-bind-address", "log-level"},
	"coxswain node": {"kubeconfig", "nodes", "node-prefix", "runtime", "node-ip", "root-dir", "network-kubeconfig",
		"network-mode", "cluster-dns", "log-level"},
	"coxswain dns": {"kubeconfig", "listen", "cluster-domain", "upstream", "resolv-conf", "network-namespace",
		"metrics-bind-address", "log-level"},
	"coxswain ingress": {"kubeconfig", "http-address", "https-address", "ingress-class", "default-ssl-certificate",
		"publish-address", "publish-service", "watch-namespace", "access-log", "log-level"},
	"coxswain cni serve": {"kubeconfig", "node-name", "node-ip", "network-mode", "masquerade", "cni-conf-dir",
		"cni-bin-dir", "log-level"},
	"coxswain certs": {"data-dir", "server", "tls-san", "nodes", "node-prefix", "validity", "renew", "log-level"},
	"coxswain test-server": {"nodes", "crds", "api-only", "json", "secure-port", "ready-fd", "parent",
		"end-with-stdin", "log-level"},
	"kube-apiserver": {"etcd-servers", "secure-port", "bind-address", "cert-dir", "client-ca-file",
		"service-account-issuer", "service-cluster-ip-range", "authorization-mode", "enable-admission-plugins", "v"},
}

// section is a heading of a help page. A flag belongs to the first section with a pattern that its name matches
// ("*" stands for any characters).
type section struct {
	title    string
	patterns []string
}

// sections is the table, in the order of a help page. A flag that the program accepts for kube-apiserver's sake is in
// accepted.
var sections = []section{
	{"Addresses and serving", []string{"bind-address", "secure-port", "advertise-address", "address", "port",
		"metrics-bind-address", "healthz-*", "http-address", "https-address", "listen", "profiling", "server",
		"ready-fd", "json"}},
	{"Certificates", []string{"tls-*", "cert-dir", "etcd-san", "validity", "renew", "rotate-server-certificates",
		"default-ssl-certificate", "fail-within", "component*"}},
	{"Signing of certificates and tokens", []string{"cluster-signing-*", "root-ca-file",
		"service-account-private-key-file"}},
	{"Clients' credentials", []string{"anonymous-auth", "api-audiences", "authentication-*", "client-ca-file",
		"enable-bootstrap-token-auth", "oidc-*", "requestheader-*", "service-account-*", "token-auth-file"}},
	{"Authorization", []string{"authorization-*"}},
	{"Admission", []string{"*admission-*", "default-not-ready-toleration-seconds",
		"default-unreachable-toleration-seconds"}},
	{"Audit", []string{"audit-*"}},
	{"Limits of requests", []string{"max-*", "http2-*", "enable-priority-and-fairness", "request-timeout",
		"goaway-chance"}},
	{"Storage", []string{"data-dir", "snapshot", "etcd-*", "encryption-*", "history-retention", "quota-backend-bytes",
		"event-ttl"}},
	{"Connections to nodes and extension servers", []string{"kubelet-*", "proxy-client-*"}},
	{"Services", []string{"service-*", "nodeport-addresses", "node-ports", "proxy-mode", "nftables-*",
		"masquerade-all", "hostname-override"}},
	{"Which controllers run", []string{"controllers", "leader-elect*", "cloud-provider"}},
	{"Controllers' workers", []string{"concurrent-*", "mirroring-concurrent-*"}},
	{"Controllers' settings", []string{"*cluster-cidr*", "allocate-node-cidrs", "node-cidr-*", "*eviction-rate",
		"large-cluster-*", "unhealthy-zone-threshold", "node-monitor-*", "node-startup-*", "horizontal-pod-autoscaler-*",
		"endpoint*", "mirroring-*", "terminated-pod-*", "legacy-service-account-*", "node-local-*"}},
	{"Nodes and pods", []string{"nodes", "node-prefix", "node-ip", "node-name", "runtime", "root-dir", "state-dir",
		"pod-*", "kube-reserved", "system-reserved", "allowed-unsafe-sysctls", "crds", "api-only", "clock"}},
	{"Eviction and shutdown", []string{"eviction-*", "shutdown-*", "cleanup", "parent", "end-with-stdin"}},
	{"Network and DNS", []string{"network-*", "masquerade", "proxy", "dns", "cluster-dns", "cluster-domain", "cni-*",
		"copy-plugin", "cache-*", "resolv-conf", "upstream"}},
	{"Ingresses", []string{"ingress-class", "controller-class", "create-ingress-class", "watch-namespace",
		"host-per-namespace", "publish-*", "clear-status-on-shutdown", "forwarded-headers-from", "access-log"}},
	{"This command", []string{"kubeconfig", "config", "log-level", "logging-format", "v", "version", "help", "timeout",
		"output"}},
}

// Accepted is an annotation of flags that a command accepts for the sake of another program's command lines.
const Accepted = kubeflags.Annotation

const (
	accepted = "Flags of kube-apiserver that have no effect, or are refused"
	// Unsorted is the section of flags that the table does not have.
	Unsorted = "More flags"
)

// SectionOf returns the title of the section that a flag belongs to.
func SectionOf(f *pflag.Flag) string {
	if f.Annotations[Accepted] != nil {
		return accepted
	}
	for _, s := range sections {
		for _, pattern := range s.patterns {
			if match, _ := path.Match(pattern, f.Name); match { // the patterns are well-formed
				return s.title
			}
		}
	}
	return Unsorted
}

// titles returns the titles of all sections in the order of a page.
func titles() []string {
	all := make([]string, 0, len(sections)+2)
	for _, s := range sections {
		all = append(all, s.title)
	}
	return append(all, Unsorted, accepted)
}

// Common returns the flags that the page of a command shows first.
func Common(commandPath string) []string { return common[commandPath] }
