package api

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

const networkingGroup = networkingv1.GroupName

func ingresses() *Resource {
	return &Resource{
		Group: networkingGroup, Version: "v1", Kind: "Ingress", Plural: "ingresses", Namespaced: true,
		ShortNames: []string{"ing"},
		New:        func() Object { return &networkingv1.Ingress{} },
		NewList:    func() runtime.Object { return &networkingv1.IngressList{} },

		Validate: checked(validateIngress),
		Status: statusOf(
			func(i *networkingv1.Ingress) *networkingv1.IngressStatus { return &i.Status },
			(*networkingv1.IngressStatus).DeepCopy,
		).checkedBy(checked2(validateIngressStatus)),
		Generation: true,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Class", "string", "The name of the IngressClass resource that should be used for additional configuration"),
			column("Hosts", "string", "Hosts that incoming requests are matched against before the ingress rule"),
			column("Address", "string", "Address is a list containing ingress points for the load-balancer"),
			column("Ports", "string", "Ports of TLS configurations that open"),
			ageColumn,
		},
		Cells: row(func(i *networkingv1.Ingress) []any {
			ports := "80"
			if len(i.Spec.TLS) > 0 {
				ports = "80, 443"
			}
			var addresses []string
			for _, in := range i.Status.LoadBalancer.Ingress {
				if in.IP != "" {
					addresses = append(addresses, in.IP)
				} else if in.Hostname != "" {
					addresses = append(addresses, in.Hostname)
				}
			}
			slices.Sort(addresses)
			return []any{
				i.Name, ptr.Deref(i.Spec.IngressClassName, none), hostsCell(i.Spec.Rules),
				strings.Join(slices.Compact(addresses), ","), ports, age(i.CreationTimestamp),
			}
		}),
	}
}

func hostsCell(rules []networkingv1.IngressRule) string {
	var hosts []string
	for _, r := range rules {
		if r.Host != "" {
			hosts = append(hosts, r.Host)
		}
	}
	if len(hosts) == 0 {
		return "*"
	}
	return firstAnd(hosts, len(rules))
}

func validateIngress(i *networkingv1.Ingress) field.ErrorList {
	path, spec := field.NewPath("spec"), &i.Spec
	var errs field.ErrorList
	if len(spec.Rules) == 0 && spec.DefaultBackend == nil {
		errs = append(errs, field.Invalid(path, spec.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if spec.DefaultBackend != nil {
		errs = append(errs, validateBackend(spec.DefaultBackend, path.Child("defaultBackend"))...)
	}
	if c := spec.IngressClassName; c != nil {
		errs = append(errs, dnsSubdomain(path.Child("ingressClassName"), *c)...)
	}
	for n, t := range spec.TLS {
		at := path.Child("tls").Index(n)
		for h, host := range t.Hosts {
			errs = append(errs, hostName(at.Child("hosts").Index(h), host)...)
		}
		if t.SecretName != "" {
			errs = append(errs, dnsSubdomain(at.Child("secretName"), t.SecretName)...)
		}
	}
	for n := range spec.Rules {
		r, at := &spec.Rules[n], path.Child("rules").Index(n)
		if _, err := netip.ParseAddr(r.Host); r.Host != "" && err == nil {
			errs = append(errs, field.Invalid(at.Child("host"), r.Host, "must be a DNS name, not an IP address"))
		} else if r.Host != "" {
			errs = append(errs, hostName(at.Child("host"), r.Host)...)
		}
		if r.HTTP != nil {
			errs = append(errs, validateIngressPaths(r.HTTP.Paths, at.Child("http", "paths"))...)
		}
	}
	return errs
}

func hostName(path *field.Path, host string) field.ErrorList {
	if strings.Contains(host, "*") {
		return invalid(path, host, utilvalidation.IsWildcardDNS1123Subdomain(host))
	}
	return dnsSubdomain(path, host)
}

// insecurePaths are what a router might resolve to another path than the one matched.
var insecurePaths = []string{"//", "/./", "/../", "%2f", "%2F"}

func validateIngressPaths(paths []networkingv1.HTTPIngressPath, path *field.Path) field.ErrorList {
	if len(paths) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	for i := range paths {
		p, at := &paths[i], path.Index(i)
		if p.PathType == nil {
			errs = append(errs, field.Required(at.Child("pathType"), "pathType must be specified"))
			continue
		}
		switch *p.PathType {
		case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
			if !strings.HasPrefix(p.Path, "/") {
				errs = append(errs, field.Invalid(at.Child("path"), p.Path, "must be an absolute path"))
				break
			}
			for _, s := range insecurePaths {
				if strings.Contains(p.Path, s) {
					errs = append(errs, field.Invalid(at.Child("path"), p.Path, "must not contain '"+s+"'"))
				}
			}
			for _, s := range []string{"/..", "/."} {
				if strings.HasSuffix(p.Path, s) {
					errs = append(errs, field.Invalid(at.Child("path"), p.Path, "cannot end with '"+s+"'"))
				}
			}
		case networkingv1.PathTypeImplementationSpecific:
			if p.Path != "" && !strings.HasPrefix(p.Path, "/") {
				errs = append(errs, field.Invalid(at.Child("path"), p.Path, "must be an absolute path"))
			}
		default:
			errs = append(errs, field.NotSupported(at.Child("pathType"), *p.PathType,
				[]networkingv1.PathType{networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific, networkingv1.PathTypePrefix}))
		}
		errs = append(errs, validateBackend(&p.Backend, at.Child("backend"))...)
	}
	return errs
}

func validateBackend(b *networkingv1.IngressBackend, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case b.Resource != nil && b.Service != nil:
		return field.ErrorList{field.Invalid(path, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		errs = append(errs, required(path.Child("resource", "kind"), b.Resource.Kind)...)
		return append(errs, required(path.Child("resource", "name"), b.Resource.Name)...)
	case b.Service == nil:
		return field.ErrorList{field.Required(path, "resource or service backend is required")}
	}
	at, port := path.Child("service"), b.Service.Port
	if b.Service.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	} else {
		errs = append(errs, invalid(at.Child("name"), b.Service.Name, utilvalidation.IsDNS1035Label(b.Service.Name))...)
	}
	switch {
	case port.Name != "" && port.Number != 0:
		errs = append(errs, field.Invalid(path, b, "cannot set both port name & port number"))
	case port.Name != "":
		errs = append(errs, invalid(at.Child("port", "name"), port.Name, utilvalidation.IsValidPortName(port.Name))...)
	case port.Number == 0:
		errs = append(errs, field.Required(path, "port name or number is required"))
	default:
		errs = append(errs, portNumber(at.Child("port", "number"), port.Number)...)
	}
	return errs
}

func validateIngressStatus(i, _ *networkingv1.Ingress) field.ErrorList {
	var errs field.ErrorList
	for n, in := range i.Status.LoadBalancer.Ingress {
		at := field.NewPath("status", "loadBalancer", "ingress").Index(n)
		if in.IP != "" {
			errs = append(errs, validIP(at.Child("ip"), in.IP)...)
		}
		if in.Hostname != "" {
			errs = append(errs, dnsSubdomain(at.Child("hostname"), in.Hostname)...)
		}
	}
	return errs
}

func ingressClasses() *Resource {
	return &Resource{
		Group: networkingGroup, Version: "v1", Kind: "IngressClass", Plural: "ingressclasses",
		New:     func() Object { return &networkingv1.IngressClass{} },
		NewList: func() runtime.Object { return &networkingv1.IngressClassList{} },

		Default: with(func(c *networkingv1.IngressClass) {
			if c.Spec.Parameters != nil {
				setDefaultPtr(&c.Spec.Parameters.Scope, networkingv1.IngressClassParametersReferenceScopeCluster)
			}
		}),
		Validate: checked(validateIngressClass),
		ValidateUpdate: checked2(func(c, old *networkingv1.IngressClass) field.ErrorList {
			return unchanged(c.Spec.Controller, old.Spec.Controller, field.NewPath("spec", "controller"))
		}),
		Generation: true,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Controller", "string", "Controller that is responsible for handling this class"),
			column("Parameters", "string", "A reference to a resource with additional parameters"),
			ageColumn,
		},
		Cells: row(func(c *networkingv1.IngressClass) []any {
			parameters := none
			if p := c.Spec.Parameters; p != nil {
				parameters = p.Kind
				if p.APIGroup != nil {
					parameters += "." + *p.APIGroup
				}
				parameters += "/" + p.Name
			}
			return []any{c.Name, c.Spec.Controller, parameters, age(c.CreationTimestamp)}
		}),
	}
}

func validateIngressClass(c *networkingv1.IngressClass) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if at := path.Child("controller"); len(c.Spec.Controller) > 250 {
		errs = append(errs, field.TooLong(at, c.Spec.Controller, 250))
	} else {
		errs = append(errs, utilvalidation.IsDomainPrefixedPath(at, c.Spec.Controller)...)
	}
	p, at := c.Spec.Parameters, path.Child("parameters")
	if p == nil {
		return errs
	}
	errs = append(errs, required(at.Child("kind"), p.Kind)...)
	errs = append(errs, required(at.Child("name"), p.Name)...)
	scope := ptr.Deref(p.Scope, "")
	errs = append(errs, requiredOneOf(at.Child("scope"), scope,
		networkingv1.IngressClassParametersReferenceScopeCluster, networkingv1.IngressClassParametersReferenceScopeNamespace)...)
	switch namespace := ptr.Deref(p.Namespace, ""); {
	case scope == networkingv1.IngressClassParametersReferenceScopeNamespace && namespace == "":
		errs = append(errs, field.Required(at.Child("namespace"), "`parameters.scope` is set to 'Namespace'"))
	case scope == networkingv1.IngressClassParametersReferenceScopeCluster && p.Namespace != nil:
		errs = append(errs, field.Forbidden(at.Child("namespace"), "`parameters.scope` is set to 'Cluster'"))
	}
	return errs
}

func networkPolicies() *Resource {
	return &Resource{
		Group: networkingGroup, Version: "v1", Kind: "NetworkPolicy", Plural: "networkpolicies", Namespaced: true,
		ShortNames: []string{"netpol"},
		New:        func() Object { return &networkingv1.NetworkPolicy{} },
		NewList:    func() runtime.Object { return &networkingv1.NetworkPolicyList{} },

		Default:    with(defaultNetworkPolicy),
		Validate:   checked(validateNetworkPolicy),
		Generation: true,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Pod-Selector", "string", networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"]),
			ageColumn,
		},
		Cells: row(func(p *networkingv1.NetworkPolicy) []any {
			return []any{p.Name, selectorCell(&p.Spec.PodSelector), age(p.CreationTimestamp)}
		}),
	}
}

func defaultNetworkPolicy(p *networkingv1.NetworkPolicy) {
	if len(p.Spec.PolicyTypes) == 0 {
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	ports := func(list []networkingv1.NetworkPolicyPort) {
		for i := range list {
			setDefaultPtr(&list[i].Protocol, corev1.ProtocolTCP)
		}
	}
	for i := range p.Spec.Ingress {
		ports(p.Spec.Ingress[i].Ports)
	}
	for i := range p.Spec.Egress {
		ports(p.Spec.Egress[i].Ports)
	}
}

func validateNetworkPolicy(p *networkingv1.NetworkPolicy) field.ErrorList {
	path := field.NewPath("spec")
	errs := selector(&p.Spec.PodSelector, path.Child("podSelector"))
	for i, r := range p.Spec.Ingress {
		errs = append(errs, validatePolicyRule(r.Ports, r.From, "from", path.Child("ingress").Index(i))...)
	}
	for i, r := range p.Spec.Egress {
		errs = append(errs, validatePolicyRule(r.Ports, r.To, "to", path.Child("egress").Index(i))...)
	}
	at := path.Child("policyTypes")
	if len(p.Spec.PolicyTypes) > 2 {
		return append(errs, field.Invalid(at, p.Spec.PolicyTypes, "may not specify more than two policyTypes"))
	}
	for i, t := range p.Spec.PolicyTypes {
		errs = append(errs, oneOf(at.Index(i), t, networkingv1.PolicyTypeEgress, networkingv1.PolicyTypeIngress)...)
	}
	return errs
}

func validatePolicyRule(ports []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer, direction string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range ports {
		at := path.Child("ports").Index(i)
		if p.Protocol != nil {
			errs = append(errs, oneOf(at.Child("protocol"), *p.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)...)
		}
		if p.Port != nil {
			errs = append(errs, portNumberOrName(at.Child("port"), *p.Port)...)
		}
		switch {
		case p.EndPort == nil:
		case p.Port == nil:
			errs = append(errs, field.Required(at.Child("port"), "must be specified when `endPort` is specified"))
		case p.Port.Type == intstr.String:
			errs = append(errs, field.Invalid(at.Child("endPort"), *p.EndPort, "may not be specified when `port` is non-numeric"))
		case *p.EndPort < p.Port.IntVal:
			errs = append(errs, field.Invalid(at.Child("endPort"), *p.EndPort, "must be greater than or equal to `port`"))
		default:
			errs = append(errs, portNumber(at.Child("endPort"), *p.EndPort)...)
		}
	}
	for i := range peers {
		errs = append(errs, validatePeer(&peers[i], path.Child(direction).Index(i))...)
	}
	return errs
}

func validatePeer(p *networkingv1.NetworkPolicyPeer, path *field.Path) field.ErrorList {
	errs := selector(p.PodSelector, path.Child("podSelector"))
	errs = append(errs, selector(p.NamespaceSelector, path.Child("namespaceSelector"))...)
	block := p.IPBlock
	switch {
	case block == nil && p.PodSelector == nil && p.NamespaceSelector == nil:
		errs = append(errs, field.Required(path, "must specify a peer"))
	case block != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
		errs = append(errs, field.Forbidden(path, "may not specify both ipBlock and another peer"))
	case block != nil:
		errs = append(errs, validateIPBlock(block, path.Child("ipBlock"))...)
	}
	return errs
}

func validateIPBlock(b *networkingv1.IPBlock, path *field.Path) field.ErrorList {
	if b.CIDR == "" {
		return field.ErrorList{field.Required(path.Child("cidr"), "")}
	}
	errs := utilvalidation.IsValidCIDRForLegacyField(path.Child("cidr"), b.CIDR, true, nil)
	outer, err := netip.ParsePrefix(b.CIDR)
	for i, except := range b.Except {
		at := path.Child("except").Index(i)
		errs = append(errs, utilvalidation.IsValidCIDRForLegacyField(at, except, true, nil)...)
		if inner, innerErr := netip.ParsePrefix(except); err == nil && innerErr == nil &&
			(!outer.Contains(inner.Addr()) || inner.Bits() <= outer.Bits()) {
			errs = append(errs, field.Invalid(at, except, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}

func ipAddresses() *Resource {
	return &Resource{
		Group: networkingGroup, Version: "v1", Kind: "IPAddress", Plural: "ipaddresses",
		ShortNames: []string{"ip"},
		New:        func() Object { return &networkingv1.IPAddress{} },
		NewList:    func() runtime.Object { return &networkingv1.IPAddressList{} },

		ValidateName: func(name string, _ bool) []string {
			if addr, err := netip.ParseAddr(name); err != nil || addr.String() != name {
				return []string{"must be a valid IP address in canonical form"}
			}
			return nil
		},
		Validate: checked(func(a *networkingv1.IPAddress) field.ErrorList {
			at, ref := field.NewPath("spec", "parentRef"), a.Spec.ParentRef
			if ref == nil {
				return field.ErrorList{field.Required(at, "")}
			}
			return append(required(at.Child("resource"), ref.Resource), required(at.Child("name"), ref.Name)...)
		}),
		ValidateUpdate: checked2(func(a, old *networkingv1.IPAddress) field.ErrorList {
			return unchanged(a.Spec.ParentRef, old.Spec.ParentRef, field.NewPath("spec", "parentRef"))
		}),
		Fields: []string{"spec.parentRef.name", "spec.parentRef.namespace", "spec.parentRef.resource", "spec.parentRef.group"},

		Columns: []metav1.TableColumnDefinition{nameColumn, column("ParentRef", "string", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"]), ageColumn},
		Cells: row(func(a *networkingv1.IPAddress) []any {
			parent := none
			if ref := a.Spec.ParentRef; ref != nil {
				parts := []string{ref.Resource}
				if ref.Group != "" {
					parts[0] += "." + ref.Group
				}
				if ref.Namespace != "" {
					parts = append(parts, ref.Namespace)
				}
				parent = strings.Join(append(parts, ref.Name), "/")
			}
			return []any{a.Name, parent, age(a.CreationTimestamp)}
		}),
	}
}

func serviceCIDRs() *Resource {
	return &Resource{
		Group: networkingGroup, Version: "v1", Kind: "ServiceCIDR", Plural: "servicecidrs",
		New:     func() Object { return &networkingv1.ServiceCIDR{} },
		NewList: func() runtime.Object { return &networkingv1.ServiceCIDRList{} },

		Validate: checked(validateServiceCIDR),
		ValidateUpdate: checked2(func(c, old *networkingv1.ServiceCIDR) field.ErrorList {
			if n := len(old.Spec.CIDRs); n == 1 && len(c.Spec.CIDRs) == 2 && c.Spec.CIDRs[0] == old.Spec.CIDRs[0] {
				return nil // a second family may be added
			}
			return unchanged(c.Spec.CIDRs, old.Spec.CIDRs, field.NewPath("spec", "cidrs"))
		}),
		Status: statusOf(
			func(c *networkingv1.ServiceCIDR) *networkingv1.ServiceCIDRStatus { return &c.Status },
			(*networkingv1.ServiceCIDRStatus).DeepCopy,
		),

		Columns: []metav1.TableColumnDefinition{nameColumn, column("CIDRs", "string", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]), ageColumn},
		Cells: row(func(c *networkingv1.ServiceCIDR) []any {
			return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), age(c.CreationTimestamp)}
		}),
	}
}

func validateServiceCIDR(c *networkingv1.ServiceCIDR) field.ErrorList {
	path := field.NewPath("spec", "cidrs")
	if len(c.Spec.CIDRs) == 0 {
		return field.ErrorList{field.Required(path, "at least one CIDR required")}
	}
	var errs field.ErrorList
	if len(c.Spec.CIDRs) > 2 {
		errs = append(errs, field.Invalid(path, c.Spec.CIDRs, "may only hold up to 2 values"))
	}
	for i, cidr := range c.Spec.CIDRs {
		errs = append(errs, utilvalidation.IsValidCIDR(path.Index(i), cidr)...)
		for _, other := range c.Spec.CIDRs[:i] {
			if strings.Contains(cidr, ":") == strings.Contains(other, ":") {
				errs = append(errs, field.Invalid(path, c.Spec.CIDRs, "may specify no more than one IP for each IP family"))
			}
		}
	}
	return errs
}
