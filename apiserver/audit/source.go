package audit

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxSourceIPs is how many addresses an event has at most. The last ones stay: those that the client cannot choose.
const maxSourceIPs = 32

// sourceIPs appends the addresses of X-Forwarded-For, then that of X-Real-Ip, then the connection's, each unless it is
// there already (k8s.io/apimachinery/pkg/util/net.SourceIPs). All but the last may have been made up.
func sourceIPs(ips []string, hr *http.Request) []string {
	if chain := hr.Header.Get("X-Forwarded-For"); chain != "" {
		ips = forwarded(ips, chain)
	}
	if real := hr.Header.Get("X-Real-Ip"); real != "" {
		if ip, ok := parseIP(real); ok && !slices.Contains(ips, ip) {
			ips = append(ips, ip)
		}
	}
	host, _, err := net.SplitHostPort(hr.RemoteAddr)
	if err != nil {
		host = hr.RemoteAddr
	}
	if ip, ok := parseIP(host); ok && (len(ips) == 0 || ips[len(ips)-1] != ip) {
		ips = append(ips, ip)
	}
	return ips[max(len(ips)-maxSourceIPs, 0):]
}

// forwarded appends the end of a chain of addresses.
func forwarded(ips []string, chain string) []string {
	for range maxSourceIPs {
		at := strings.LastIndexByte(chain, ',')
		if ip, ok := parseIP(chain[at+1:]); ok {
			ips = append(ips, ip)
		}
		if at < 0 {
			break
		}
		chain = chain[:at]
	}
	slices.Reverse(ips)
	return ips
}

func parseIP(text string) (string, bool) {
	text = strings.TrimSpace(text)
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.Zone() != "" {
		return "", false
	}
	if ip.Is4() {
		return text, true // which has one spelling
	}
	return ip.Unmap().String(), true
}
