package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

func TestServerOf_ReturnsTheServersAddress(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"https://192.0.2.1:6443":         "192.0.2.1:6443",
		"https://192.0.2.1":              "192.0.2.1:443",
		"https://[2001:db8::1]:6443/api": "[2001:db8::1]:6443",
		"https://[::ffff:192.0.2.1]:1":   "192.0.2.1:1",
		"https://api.example.com:6443":   "",
		"https://192.0.2.1:0x":           "",
		"":                               "",
	} {
		var all []netip.AddrPort
		if want != "" {
			all = append(all, netip.MustParseAddrPort(want))
		}
		require.Equal(t, all, serverOf(&rest.Config{Host: host}), host)
	}
}
