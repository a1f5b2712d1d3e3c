package networking

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	netutils "k8s.io/utils/net"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

func networkPolicies() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: networkingGroup, Version: "v1", Kind: "NetworkPolicy", Plural: "networkpolicies", Namespaced: true,
			ShortNames: []string{"netpol"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &networkingv1.NetworkPolicy{} },
			NewList: func() runtime.Object { return &networkingv1.NetworkPolicyList{} },
		},
		Strategy: api.Strategy{
			Default:    api.Typed(defaultNetworkPolicy),
			Validate:   api.Check(validateNetworkPolicy),
			Warnings:   api.Warn(warnNetworkPolicy),
			Generation: true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Pod-Selector", "string", networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"]),
				table.Age,
			},
			Cells: api.Row(func(p *networkingv1.NetworkPolicy) []any {
				return []any{p.Name, metav1.FormatLabelSelector(&p.Spec.PodSelector), table.AgeOf(p.CreationTimestamp)}
			}),
		},
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
			defaults.SetPtr(&list[i].Protocol, corev1.ProtocolTCP)
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
	errs := validate.Selector(&p.Spec.PodSelector, path.Child("podSelector"))
	for i, r := range p.Spec.Ingress {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validatePolicyRule(r.Ports, r.From, "from", path.Child("ingress").Index(i))...)
	}
	for i, r := range p.Spec.Egress {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validatePolicyRule(r.Ports, r.To, "to", path.Child("egress").Index(i))...)
	}
	policyTypesPath := path.Child("policyTypes")
	if len(p.Spec.PolicyTypes) > 2 {
		return append(errs,
			field.Invalid(policyTypesPath, p.Spec.PolicyTypes, "may not specify more than two policyTypes"))
	}
	for i, t := range p.Spec.PolicyTypes {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.OneOf(policyTypesPath.Index(i), t, networkingv1.PolicyTypeIngress,
			networkingv1.PolicyTypeEgress)...)
	}
	return errs
}

func validatePolicyRule(ports []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer,
	direction string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range ports {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("ports").Index(i)
		if p.Protocol != nil {
			errs = append(errs, validate.OneOf(idxPath.Child("protocol"), *p.Protocol, corev1.ProtocolTCP,
				corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
		}
		if p.Port != nil {
			errs = append(errs, validate.PortNumberOrName(idxPath.Child("port"), *p.Port)...)
		}
		if p.EndPort == nil {
			continue
		}
		end := idxPath.Child("endPort")
		switch {
		case p.Port == nil:
			errs = append(errs, field.Invalid(end, *p.EndPort, "may not be specified when `port` is not specified"))
		case p.Port.Type == intstr.String:
			errs = append(errs, field.Invalid(end, *p.EndPort, "may not be specified when `port` is non-numeric"))
		default:
			if *p.EndPort < p.Port.IntVal {
				errs = append(errs, field.Invalid(end, *p.EndPort, "must be greater than or equal to `port`"))
			}
			errs = append(errs, validate.PortNumber(end, *p.EndPort)...)
		}
	}
	for i := range peers {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validatePeer(&peers[i], path.Child(direction).Index(i))...)
	}
	return errs
}

func validatePeer(p *networkingv1.NetworkPolicyPeer, path *field.Path) field.ErrorList {
	errs := validate.Selector(p.PodSelector, path.Child("podSelector"))
	errs = append(errs, validate.Selector(p.NamespaceSelector, path.Child("namespaceSelector"))...)
	block := p.IPBlock
	if block != nil {
		errs = append(errs, validateIPBlock(block, path.Child("ipBlock"))...)
	}
	switch {
	case block == nil && p.PodSelector == nil && p.NamespaceSelector == nil:
		errs = append(errs, field.Required(path, "must specify a peer"))
	case block != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
		errs = append(errs, field.Forbidden(path, "may not specify both ipBlock and another peer"))
	}
	return errs
}

func validateIPBlock(b *networkingv1.IPBlock, path *field.Path) field.ErrorList {
	if b.CIDR == "" {
		return field.ErrorList{field.Required(path.Child("cidr"), "")}
	}
	errs := validate.CIDR(path.Child("cidr"), b.CIDR)
	_, outer, err := netutils.ParseCIDRSloppy(b.CIDR)
	if err != nil {
		return errs
	}
	for i, except := range b.Except {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("except").Index(i)
		errs = append(errs, validate.CIDR(idxPath, except)...)
		_, inner, err := netutils.ParseCIDRSloppy(except)
		if err != nil {
			continue
		}
		outerBits, _ := outer.Mask.Size()
		innerBits, _ := inner.Mask.Size()
		if !outer.Contains(inner.IP) || innerBits <= outerBits {
			errs = append(errs, field.Invalid(idxPath, except, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}

// warnNetworkPolicy warns about CIDRs that are not in canonical form.
func warnNetworkPolicy(p, _ *networkingv1.NetworkPolicy) []string {
	var list []string
	tell := func(peers []networkingv1.NetworkPolicyPeer, path *field.Path) {
		for i := range peers {
			if b, ipBlockPath := peers[i].IPBlock, path.Index(i).Child("ipBlock"); b != nil {
				list = append(list, warnCIDR(b.CIDR, ipBlockPath.Child("cidr"))...)
				for j, except := range b.Except {
					list = append(list, warnCIDR(except, ipBlockPath.Child("except").Index(j))...)
				}
			}
		}
	}
	path := field.NewPath("spec")
	for i := range p.Spec.Ingress {
		tell(p.Spec.Ingress[i].From, path.Child("ingress").Index(i).Child("from"))
	}
	for i := range p.Spec.Egress {
		tell(p.Spec.Egress[i].To, path.Child("egress").Index(i).Child("to"))
	}
	return list
}

func warnCIDR(cidr string, path *field.Path) []string {
	if _, _, err := netutils.ParseCIDRSloppy(cidr); err != nil {
		return nil
	}
	return utilvalidation.GetWarningsForCIDR(path.Plain(), cidr)
}
