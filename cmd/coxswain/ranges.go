package main

import (
	"errors"
	"fmt"
	"net/netip"
)

// checkServiceRanges reports a combination of --service-cluster-ip-range and --advertise-address that cannot work, as
// kube-apiserver does at its start. The address is not valid where it is not given. A server that listens at an address
// of another family, such as that of loopback, then has no endpoint of the ranges' family in the Service kubernetes.
func checkServiceRanges(ranges []netip.Prefix, advertise netip.Addr) error {
	const flag = "--service-cluster-ip-range"
	switch {
	case len(ranges) == 0:
		return errors.New(flag + " must contain at least one valid cidr")
	case len(ranges) > 2:
		return errors.New(flag + " must not contain more than two entries")
	case len(ranges) == 2 && ranges[0].Addr().Is4() == ranges[1].Addr().Is4():
		return errors.New(flag + "[0] and " + flag + "[1] must be of different IP family")
	}
	for _, r := range ranges {
		least, most := 8, 30 // the first address is the Service kubernetes', and the last of IPv4 nobody's
		if r.Addr().Is6() {
			least, most = 64, 126
		}
		if r.Bits() < least {
			return fmt.Errorf("specified %s is too large; for %d-bit addresses, the mask must be >= %d: %s", flag,
				r.Addr().BitLen(), least, r)
		}
		if r.Bits() > most {
			return fmt.Errorf("specified %s is too small; for %d-bit addresses, the mask must be <= %d: %s", flag,
				r.Addr().BitLen(), most, r)
		}
	}
	if advertise.IsValid() && advertise.Is4() != ranges[0].Addr().Is4() {
		return fmt.Errorf("service IP family %q must match public address family %q (%s, and --advertise-address %s)",
			familyOf(ranges[0].Addr()), familyOf(advertise), flag, advertise)
	}
	return nil
}

// checkProcessRanges reports ranges whose addresses pods of --runtime process do not reach: these have IPv4 alone.
func checkProcessRanges(ranges []netip.Prefix) error {
	for _, r := range ranges {
		if r.Addr().Is6() {
			return fmt.Errorf("--runtime process gives pods IPv4 addresses only, so that nothing would answer in %s "+
				"of --service-cluster-ip-range: it must be one IPv4 range", r)
		}
	}
	return nil
}

func familyOf(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
