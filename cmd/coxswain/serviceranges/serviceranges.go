// Package serviceranges parses and checks the flag --service-cluster-ip-range, the ranges of Services' cluster IPs, and
// has the addresses in them that are reserved by convention.
package serviceranges

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

const flag = "--service-cluster-ip-range"

// Parse returns the ranges of the flag's values, with the host bits set to zero.
func Parse(values []string) ([]netip.Prefix, error) {
	ranges := make([]netip.Prefix, len(values))
	for i, value := range values {
		p, err := netip.ParsePrefix(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		ranges[i] = p.Masked()
	}
	return ranges, nil
}

// KubernetesIP returns the address of the Service kubernetes, the first of a range.
func KubernetesIP(r netip.Prefix) netip.Addr { return r.Addr().Next() }

// DNSIP returns the address that the Service kube-dns has by convention, the tenth of the first range.
func DNSIP(ranges []netip.Prefix) netip.Addr {
	address := ranges[0].Masked().Addr()
	for range 10 {
		address = address.Next()
	}
	return address
}

// Check returns an error for ranges that cannot work, alone or with --advertise-address, as kube-apiserver does when it
// starts. advertise is invalid if the flag is not set. A server that listens on an address of another family, such as a
// loopback address, then has no endpoint of the ranges' family in the Service kubernetes.
func Check(ranges []netip.Prefix, advertise netip.Addr) error {
	switch {
	case len(ranges) == 0:
		return errors.New(flag + " must contain at least one valid cidr")
	case len(ranges) > 2:
		return errors.New(flag + " must not contain more than two entries")
	case len(ranges) == 2 && ranges[0].Addr().Is4() == ranges[1].Addr().Is4():
		return errors.New(flag + "[0] and " + flag + "[1] must be of different IP family")
	}
	for _, r := range ranges {
		// The Service kubernetes has the first address. The last one of IPv4 is not allocated.
		shortest, longest := 8, 30
		if r.Addr().Is6() {
			shortest, longest = 64, 126
		}
		if r.Bits() < shortest {
			return fmt.Errorf("specified %s is too large; for %d-bit addresses, the mask must be >= %d: %s", flag,
				r.Addr().BitLen(), shortest, r)
		}
		if r.Bits() > longest {
			return fmt.Errorf("specified %s is too small; for %d-bit addresses, the mask must be <= %d: %s", flag,
				r.Addr().BitLen(), longest, r)
		}
	}
	if advertise.IsValid() && advertise.Is4() != ranges[0].Addr().Is4() {
		return fmt.Errorf("service IP family %q must match public address family %q (%s, and --advertise-address %s)",
			familyOf(ranges[0].Addr()), familyOf(advertise), flag, advertise)
	}
	return nil
}

// CheckProcess returns an error for ranges that pods of --runtime process cannot reach: they have IPv4 addresses only.
func CheckProcess(ranges []netip.Prefix) error {
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
