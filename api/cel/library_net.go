package cel

import (
	"fmt"
	"net/netip"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// The libraries of IP addresses and of CIDR networks.

var ipLibrary = library{name: "kubernetes.net.ip", functions: map[string][]celgo.FunctionOpt{
	"ip":             {call("string_to_ip", args(celgo.StringType), ipType, unary(stringToIP))},
	"isIP":           {call("is_ip", args(celgo.StringType), celgo.BoolType, unary(isIP))},
	"ip.isCanonical": {call("ip_is_canonical", args(celgo.StringType), celgo.BoolType, unary(isCanonical))},
	"string": {call("ip_to_string", args(ipType), celgo.StringType, unary(func(a netip.Addr) ref.Val {
		return types.String(a.String())
	}))},
	"family":               {member("ip_family", args(ipType), celgo.IntType, unary(family))},
	"isUnspecified":        {ipIs("ip_is_unspecified", netip.Addr.IsUnspecified)},
	"isLoopback":           {ipIs("ip_is_loopback", netip.Addr.IsLoopback)},
	"isLinkLocalMulticast": {ipIs("ip_is_link_local_multicast", netip.Addr.IsLinkLocalMulticast)},
	"isLinkLocalUnicast":   {ipIs("ip_is_link_local_unicast", netip.Addr.IsLinkLocalUnicast)},
	"isGlobalUnicast":      {ipIs("ip_is_global_unicast", netip.Addr.IsGlobalUnicast)},
}}

var cidrLibrary = library{name: "kubernetes.net.cidr", functions: map[string][]celgo.FunctionOpt{
	"cidr":   {call("string_to_cidr", args(celgo.StringType), cidrType, unary(stringToCIDR))},
	"isCIDR": {call("is_cidr", args(celgo.StringType), celgo.BoolType, unary(isCIDR))},
	"string": {call("cidr_to_string", args(cidrType), celgo.StringType, unary(func(p netip.Prefix) ref.Val {
		return types.String(p.String())
	}))},
	"containsIP": {
		member("cidr_contains_ip_string", args(cidrType, celgo.StringType), celgo.BoolType,
			binary(func(p netip.Prefix, text string) ref.Val {
				a, err := parseIP(text)
				if err != nil {
					return types.WrapErr(err)
				}
				return types.Bool(p.Contains(a))
			})),
		member("cidr_contains_ip_ip", args(cidrType, ipType), celgo.BoolType,
			binary(func(p netip.Prefix, a netip.Addr) ref.Val {
				return types.Bool(p.Contains(a))
			})),
	},
	"containsCIDR": {
		member("cidr_contains_cidr_string", args(cidrType, celgo.StringType), celgo.BoolType,
			binary(func(p netip.Prefix, text string) ref.Val {
				other, err := parseCIDR(text)
				if err != nil {
					return notCIDR(err)
				}
				return types.Bool(within(other, p))
			})),
		member("cidr_contains_cidr", args(cidrType, cidrType), celgo.BoolType,
			binary(func(p, other netip.Prefix) ref.Val {
				return types.Bool(within(other, p))
			})),
	},
	"ip": {member("cidr_ip", args(cidrType), ipType, unary(func(p netip.Prefix) ref.Val {
		return ipValue(p.Addr())
	}))},
	"prefixLength": {member("cidr_prefix_length", args(cidrType), celgo.IntType, unary(func(p netip.Prefix) ref.Val {
		return types.Int(p.Bits())
	}))},
	"masked": {member("cidr_masked", args(cidrType), cidrType, unary(func(p netip.Prefix) ref.Val {
		return cidrValue(p.Masked())
	}))},
}}

func ipIs(id string, is func(netip.Addr) bool) celgo.FunctionOpt {
	return member(id, args(ipType), celgo.BoolType, unary(func(a netip.Addr) ref.Val { return types.Bool(is(a)) }))
}

func ipValue(a netip.Addr) ref.Val {
	return value[netip.Addr]{typ: ipType, wrapped: a, equal: func(a, b netip.Addr) bool {
		return a == b
	}, text: netip.Addr.String, size: a.BitLen() / 8}
}

func cidrValue(p netip.Prefix) ref.Val {
	return value[netip.Prefix]{typ: cidrType, wrapped: p, equal: func(a, b netip.Prefix) bool {
		return a == b
	}, text: netip.Prefix.String, size: (p.Bits() + 7) / 8}
}

// parseIP rejects zones and IPv4-mapped IPv6 addresses: they have more than one notation.
func parseIP(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return a, fmt.Errorf("IP Address %q parse error during conversion from string: %w", text, err)
	case a.Zone() != "":
		return a, fmt.Errorf("IP address %q with zone value is not allowed", text)
	case a.Is4In6():
		return a, fmt.Errorf("IPv4-mapped IPv6 address %q is not allowed", text)
	}
	return a, nil
}

func parseCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, fmt.Errorf("network address parse error during conversion from string: %w", err)
	case p.Addr().Is4In6():
		return p, fmt.Errorf("IPv4-mapped IPv6 address %q is not allowed", text)
	}
	return p, nil
}

func notCIDR(err error) ref.Val {
	return types.NewErr("network address parse error during conversion from string: %v", err)
}

func within(inner, outer netip.Prefix) bool {
	return outer.Overlaps(inner) && outer.Bits() <= inner.Bits()
}

func stringToIP(text string) ref.Val {
	a, err := parseIP(text)
	if err != nil {
		return types.WrapErr(err)
	}
	return ipValue(a)
}

func isIP(text string) ref.Val {
	_, err := parseIP(text)
	return types.Bool(err == nil)
}

func isCanonical(text string) ref.Val {
	a, err := parseIP(text)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.Bool(a.String() == text)
}

func family(a netip.Addr) ref.Val {
	if a.Is4() {
		return types.Int(4)
	}
	return types.Int(6)
}

func stringToCIDR(text string) ref.Val {
	p, err := parseCIDR(text)
	if err != nil {
		return notCIDR(err)
	}
	return cidrValue(p)
}

func isCIDR(text string) ref.Val {
	_, err := parseCIDR(text)
	return types.Bool(err == nil)
}
