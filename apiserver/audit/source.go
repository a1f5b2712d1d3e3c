package audit

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxSourceIPs limits the addresses in an event. It keeps the last ones, which clients cannot forge.
const maxSourceIPs = 32

// sourceIPs appends the addresses of X-Forwarded-For, then X-Real-Ip, then the connection, without duplicates
// (k8s.io/apimachinery/pkg/util/net.SourceIPs). A client can forge all except the last.
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

// forwarded appends the last maxSourceIPs addresses of a chain.
func forwarded(ips []string, chain string) []string {
	for range maxSourceIPs {
		comma := strings.LastIndexByte(chain, ',')
		if ip, ok := parseIP(chain[comma+1:]); ok {
			ips = append(ips, ip)
		}
		if comma < 0 {
			break
		}
		chain = chain[:comma]
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
		return text, true // IPv4 has a single spelling
	}
	return ip.Unmap().String(), true
}
