package process

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Limits of a resolv.conf: of glibc's resolver, and of the kubelet for pods.
const (
	maxNameservers  = 3
	maxSearches     = 32
	maxSearchLength = 2048
)

// maxHostname is the kernel's limit on a host name.
const maxHostname = 64

// resolver is the content of a resolv.conf, in the order of the file.
type resolver struct {
	nameservers, searches, options []string
}

// warning is an Event about a part of a pod's DNS configuration that is not applied.
type warning struct{ reason, message string }

// parseResolver parses a machine's resolv.conf as the kubelet does: of several search lines the last one applies.
func parseResolver(text string) resolver {
	var r resolver
	for line := range strings.Lines(text) {
		if i := strings.IndexAny(line, "#;"); i == 0 {
			continue
		}
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			r.nameservers = append(r.nameservers, words[1])
		case "search":
			r.searches = nil
			for _, s := range words[1:] {
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				r.searches = append(r.searches, s)
			}
		case "options":
			r.options = append(r.options, words[1:]...)
		}
	}
	return r
}

// String returns the text of the file.
func (r resolver) String() string {
	var b strings.Builder
	if len(r.searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(r.searches, " "))
	}
	for _, server := range r.nameservers {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	if len(r.options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(r.options, " "))
	}
	return b.String()
}

// podResolver combines a pod's dnsPolicy and dnsConfig with the machine's resolver and the cluster's DNS servers, as
// the kubelet does.
func podResolver(pod *corev1.Pod, machine resolver, servers []string, domain string) (resolver, []warning) {
	r, warnings := policyResolver(pod, machine, servers, domain)
	if c := pod.Spec.DNSConfig; c != nil {
		r.nameservers = merged(r.nameservers, c.Nameservers)
		r.searches = merged(r.searches, c.Searches)
		r.options = mergedOptions(r.options, c.Options)
	}
	if len(r.nameservers) > maxNameservers {
		r.nameservers = r.nameservers[:maxNameservers]
		warnings = append(warnings, warning{"DNSConfigForming", "Nameserver limits were exceeded, some nameservers " +
			"have been omitted, the applied nameserver line is: " + strings.Join(r.nameservers, " ")})
	}
	if fitting := fittingSearches(r.searches); len(fitting) < len(r.searches) {
		r.searches = fitting
		warnings = append(warnings, warning{"DNSConfigForming", "Search Line limits were exceeded, some search paths " +
			"have been omitted, the applied search line is: " + strings.Join(r.searches, " ")})
	}
	return r, warnings
}

// policyResolver returns the resolver of a dnsPolicy alone. A pod with hostNetwork uses the cluster's DNS only with
// ClusterFirstWithHostNet.
func policyResolver(pod *corev1.Pod, machine resolver, servers []string, domain string) (resolver, []warning) {
	policy := pod.Spec.DNSPolicy
	switch {
	case policy == corev1.DNSNone:
		return resolver{}, nil
	case policy == corev1.DNSDefault, policy != corev1.DNSClusterFirstWithHostNet && pod.Spec.HostNetwork:
		return machine, nil
	case len(servers) == 0:
		return machine, []warning{{"MissingClusterDNS", fmt.Sprintf("pod: %q. Kubelet does not have ClusterDNS IP "+
			"configured and cannot create Pod using %q policy. Falling back to %q policy.",
			fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), policy, corev1.DNSDefault)}}
	}
	r := resolver{nameservers: servers, searches: machine.searches, options: []string{"ndots:5"}}
	if domain != "" {
		service := "svc." + domain
		r.searches = merged([]string{pod.Namespace + "." + service, service, domain}, machine.searches)
	}
	return r, nil
}

// merged returns the elements of both lists in order, each once.
func merged(first, second []string) []string {
	var list []string
	for _, one := range slices.Concat(first, second) {
		if !slices.Contains(list, one) {
			list = append(list, one)
		}
	}
	return list
}

// mergedOptions adds the options of dnsConfig, replacing options of the same name.
func mergedOptions(options []string, more []corev1.PodDNSConfigOption) []string {
	for _, o := range more {
		text := o.Name
		if o.Value != nil && *o.Value != "" {
			text += ":" + *o.Value
		}
		options = slices.DeleteFunc(slices.Clone(options), func(other string) bool {
			name, _, _ := strings.Cut(other, ":")
			return name == o.Name
		})
		options = append(options, text)
	}
	return options
}

// fittingSearches returns the first searches that fit within the limits.
func fittingSearches(searches []string) []string {
	length := 0
	for i, s := range searches {
		if length += len(s) + min(i, 1); i == maxSearches || length > maxSearchLength {
			return searches[:i]
		}
	}
	return searches
}

// hostname returns the first label of a pod's host name.
func hostname(pod *corev1.Pod) string {
	name := pod.Spec.Hostname
	if name == "" {
		name = pod.Name
	}
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

// fullName returns a pod's name in DNS, below its subdomain; "" if it has no subdomain.
func fullName(pod *corev1.Pod, domain string) string {
	if pod.Spec.Subdomain == "" {
		return ""
	}
	return fmt.Sprintf("%s.%s.%s.svc.%s", hostname(pod), pod.Spec.Subdomain, pod.Namespace, domain)
}

// kernelHostname returns the host name that a pod's processes see: the full one with setHostnameAsFQDN.
func kernelHostname(pod *corev1.Pod, domain string) (string, error) {
	if pod.Spec.HostnameOverride != nil {
		return *pod.Spec.HostnameOverride, nil
	}
	full := fullName(pod, domain)
	if full == "" || !ptr.Deref(pod.Spec.SetHostnameAsFQDN, false) {
		return hostname(pod), nil
	}
	if len(full) > maxHostname {
		return "", fmt.Errorf("Failed to construct FQDN from Pod hostname and cluster domain, FQDN %s is too long "+
			"(%d characters is the max, %d characters requested)", full, maxHostname, len(full))
	}
	return full, nil
}

// hosts returns a pod's /etc/hosts, as the kubelet writes it. With hostNetwork it is the machine's file and the pod's
// aliases.
func hosts(pod *corev1.Pod, ip, domain, machine string) string {
	var b strings.Builder
	if pod.Spec.HostNetwork {
		b.WriteString("# Kubernetes-managed hosts file (host network).\n" + machine)
		writeAliases(&b, pod)
		return b.String()
	}
	b.WriteString("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
	switch full := fullName(pod, domain); {
	case pod.Spec.HostnameOverride != nil:
		fmt.Fprintf(&b, "%s\t%s\n", ip, *pod.Spec.HostnameOverride)
	case full != "":
		fmt.Fprintf(&b, "%s\t%s\t%s\n", ip, full, hostname(pod))
	default:
		fmt.Fprintf(&b, "%s\t%s\n", ip, hostname(pod))
	}
	writeAliases(&b, pod)
	return b.String()
}

func writeAliases(b *strings.Builder, pod *corev1.Pod) {
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
	}
	for _, alias := range pod.Spec.HostAliases {
		fmt.Fprintf(b, "%s\t%s\n", alias.IP, strings.Join(alias.Hostnames, "\t"))
	}
}
