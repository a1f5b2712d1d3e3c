package servicealloc

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func familyOf(ip string) corev1.IPFamily {
	if strings.Contains(ip, ":") {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func familyOfPrefix(p netip.Prefix) corev1.IPFamily {
	if p.Addr().Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func otherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// families returns the IP families of the cluster's Services, the default one first.
func (a *Allocator) families() []corev1.IPFamily {
	families := make([]corev1.IPFamily, len(a.CIDRs))
	for i, c := range a.CIDRs {
		families[i] = familyOfPrefix(c)
	}
	return families
}

// chooseFamilies sets ipFamilyPolicy and ipFamilies. When the cluster gains or loses a family, a PreferDualStack
// Service keeps its families until one of the two fields changes.
// https://kubernetes.io/docs/concepts/services-networking/dual-stack/
func (a *Allocator) chooseFamilies(service, old *corev1.Service) field.ErrorList {
	spec := &service.Spec
	if old != nil && keepsPreferred(spec, &old.Spec) {
		return nil
	}
	choosePolicy(spec, old)
	errs := reduceFamilies(spec, old)
	cluster, path := a.families(), field.NewPath("spec")
	for i, ip := range spec.ClusterIPs {
		if ip == corev1.ClusterIPNone || i < len(spec.IPFamilies) {
			continue
		}
		if family := familyOf(ip); slices.Contains(cluster, family) {
			spec.IPFamilies = append(spec.IPFamilies, family)
		} else {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(i), spec.ClusterIPs,
				fmt.Sprintf("%s is not configured on this cluster", family)))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	policy := *spec.IPFamilyPolicy
	// A headless Service without a selector may have endpoints of any family.
	free := spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0
	if !free {
		if policy == corev1.IPFamilyPolicyRequireDualStack && len(cluster) < 2 {
			errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), policy,
				"this cluster is not configured for dual-stack services"))
		}
		for i, family := range spec.IPFamilies {
			if !slices.Contains(cluster, family) {
				errs = append(errs, field.Invalid(path.Child("ipFamilies").Index(i), family,
					"not configured on this cluster"))
			}
		}
		if len(errs) > 0 {
			return errs
		}
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = cluster[:1]
	}
	if policy != corev1.IPFamilyPolicySingleStack && len(spec.IPFamilies) == 1 && (free || len(cluster) == 2) {
		spec.IPFamilies = append(slices.Clone(spec.IPFamilies), otherFamily(spec.IPFamilies[0]))
	}
	return nil
}

// keepsPreferred reports whether an update leaves the families and addresses of a PreferDualStack Service
// unchanged.
func keepsPreferred(spec, old *corev1.ServiceSpec) bool {
	prefers := func(p *corev1.IPFamilyPolicy) bool { return p == nil || *p == corev1.IPFamilyPolicyPreferDualStack }
	return spec.Type == old.Type && prefers(spec.IPFamilyPolicy) && prefers(old.IPFamilyPolicy) &&
		old.IPFamilyPolicy != nil &&
		slices.Equal(spec.ClusterIPs, old.ClusterIPs) && slices.Equal(spec.IPFamilies, old.IPFamilies)
}

func choosePolicy(spec *corev1.ServiceSpec, old *corev1.Service) {
	policy := corev1.IPFamilyPolicySingleStack
	switch {
	case spec.IPFamilyPolicy != nil:
		return
	case old != nil && old.Spec.IPFamilyPolicy != nil:
		policy = *old.Spec.IPFamilyPolicy
	case spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0:
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	spec.IPFamilyPolicy = &policy
}

// reduceFamilies removes the second family and address from a Service that becomes SingleStack. Under the other
// policies, removing them is an error.
func reduceFamilies(spec *corev1.ServiceSpec, old *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	policy, path := *spec.IPFamilyPolicy, field.NewPath("spec", "ipFamilyPolicy")
	refuse := func(bad bool, why string) {
		if bad {
			errs = append(errs, field.Invalid(path, policy, why))
		}
	}
	single := policy == corev1.IPFamilyPolicySingleStack
	if old != nil && single {
		if len(spec.ClusterIPs) > 1 && slices.Equal(spec.ClusterIPs, old.Spec.ClusterIPs) {
			spec.ClusterIPs = spec.ClusterIPs[:1]
		}
		if len(spec.IPFamilies) > 1 && slices.Equal(spec.IPFamilies, old.Spec.IPFamilies) {
			spec.IPFamilies = spec.IPFamilies[:1]
		}
	}
	if old != nil && !single {
		refuse(len(spec.ClusterIPs) == 1 && len(old.Spec.ClusterIPs) == 2 &&
			spec.ClusterIPs[0] == old.Spec.ClusterIPs[0],
			"must be 'SingleStack' to release the secondary cluster IP")
		refuse(len(spec.IPFamilies) == 1 && len(old.Spec.IPFamilies) == 2 &&
			spec.IPFamilies[0] == old.Spec.IPFamilies[0],
			"must be 'SingleStack' to release the secondary IP family")
	}
	refuse(single && len(spec.ClusterIPs) == 2,
		"must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified")
	refuse(single && len(spec.IPFamilies) == 2,
		"must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified")
	return errs
}
