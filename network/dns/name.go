package dns

import (
	"encoding/hex"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// maxName is the maximum length of a name as text without the last dot (RFC 1035, 2.3.4).
const maxName = 253

// isLabel reports whether a text is a valid label of a name: letters, digits and hyphens.
func isLabel(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return len(s) > 0 && len(s) <= 63
}

// sendable reports whether a name of a Service's spec can be part of an answer: its labels consist of the characters of
// host names and underscores.
func sendable(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if !isLabel(strings.ReplaceAll(label, "_", "-")) {
			return false
		}
	}
	return true
}

// under returns the part of a name before a zone, and whether the name is in the zone. Both are in lower case and end
// with a dot.
func under(name, zone string) (rest string, is bool) {
	if name == zone {
		return "", true
	}
	cut := len(name) - len(zone) - 1
	if cut < 1 || name[cut] != '.' || name[cut+1:] != zone {
		return "", false
	}
	// A dot after a backslash is part of a label.
	if strings.IndexByte(name, '\\') >= 0 && !dns.IsSubDomain(zone, name) {
		return "", false
	}
	return name[:cut], true
}

// The zones of names that stand for addresses.
const (
	reverse4 = "in-addr.arpa."
	reverse6 = "ip6.arpa."
)

// reversed returns the address of a name in the reverse zones (RFC 1035, 3.5, and RFC 3596, 2.5).
func reversed(name string) (ip netip.Addr, zone string, ok bool) {
	if rest, is := under(name, reverse4); is {
		ip, ok = reversed4(rest)
		return ip, reverse4, ok
	}
	if rest, is := under(name, reverse6); is {
		ip, ok = reversed6(rest)
		return ip, reverse6, ok
	}
	return ip, "", false
}

func reversed4(rest string) (netip.Addr, bool) {
	var b [4]byte
	for i := 3; i >= 0; i-- {
		label, more, found := strings.Cut(rest, ".")
		n, ok := octet(label)
		if !ok || found != (i > 0) {
			return netip.Addr{}, false
		}
		b[i], rest = n, more
	}
	return netip.AddrFrom4(b), true
}

func octet(s string) (byte, bool) {
	if len(s) == 0 || len(s) > 3 || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return byte(n), n < 256
}

func reversed6(rest string) (netip.Addr, bool) {
	if len(rest) != 63 {
		return netip.Addr{}, false
	}
	var digits [32]byte
	for i := range digits {
		if i < 31 && rest[2*i+1] != '.' {
			return netip.Addr{}, false
		}
		digits[31-i] = rest[2*i]
	}
	var b [16]byte
	if _, err := hex.Decode(b[:], digits[:]); err != nil {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16(b), true
}

// undashed parses the address in a pod's name, such as 10-244-0-5.
func undashed(label string) (netip.Addr, bool) {
	if strings.Count(label, "-") == 3 && !strings.Contains(label, "--") {
		if ip, err := netip.ParseAddr(strings.ReplaceAll(label, "-", ".")); err == nil {
			return ip, true
		}
	}
	ip, err := netip.ParseAddr(strings.ReplaceAll(label, "-", ":"))
	return ip, err == nil && ip.Is6() && !ip.Is4In6()
}
