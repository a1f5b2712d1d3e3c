package validate

import (
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"fmt"
	"net/netip"

	"github.com/coxswain-dev/coxswain/api/field"
)

// IP and CIDR check addresses in fields that are older than the stricter rules for new fields.
func IP(path *field.Path, ip string) field.ErrorList {
	if len(utilvalidation.IsValidIPForLegacyField(nil, ip, true, nil)) == 0 {
		return nil
	}
	return utilvalidation.IsValidIPForLegacyField(path.Plain(), ip, true, nil)
}

func CIDR(path *field.Path, cidr string) field.ErrorList {
	if len(utilvalidation.IsValidCIDRForLegacyField(nil, cidr, true, nil)) == 0 {
		return nil
	}
	return utilvalidation.IsValidCIDRForLegacyField(path.Plain(), cidr, true, nil)
}

// UsableIP rejects addresses that are unreachable from other machines.
func UsableIP(path *field.Path, value string) field.ErrorList {
	ip, err := netip.ParseAddr(value)
	if err != nil {
		return nil
	}
	var errs field.ErrorList
	if ip.IsUnspecified() {
		errs = append(errs, field.Invalid(path, value, fmt.Sprintf("may not be unspecified (%v)", value)))
	}
	if ip.IsLoopback() {
		errs = append(errs, field.Invalid(path, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)"))
	}
	if ip.IsLinkLocalUnicast() {
		errs = append(errs,
			field.Invalid(path, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"))
	}
	if ip.IsLinkLocalMulticast() {
		errs = append(errs,
			field.Invalid(path, value, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"))
	}
	return errs
}

// Hostname checks the name of a load balancer. It may be empty.
func Hostname(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return nil
	}
	errs := DnsSubdomain(path, name)
	if _, err := netip.ParseAddr(name); err == nil {
		errs = append(errs, field.Invalid(path, name, "must be a DNS name, not an IP address"))
	}
	return errs
}
