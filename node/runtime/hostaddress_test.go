package runtime_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

func TestHostAddress_IsNeverLoopback(t *testing.T) {
	t.Parallel()
	subnet := netip.MustParsePrefix("10.244.4.0/22")
	for address, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "2001:db8::1": "2001:db8::1", "a-name": "a-name",
		"127.0.0.1": "10.244.4.1", "127.244.4.1": "10.244.4.1", "::1": "10.244.4.1",
	} {
		host, ok := runtime.HostAddress(address, subnet)
		require.True(t, ok, address)
		require.Equal(t, want, host, address)
	}
	_, ok := runtime.HostAddress("127.0.0.1", netip.Prefix{})
	require.False(t, ok, "the subnet is not known yet")
	_, ok = runtime.HostAddress("192.0.2.1", netip.Prefix{})
	require.True(t, ok)
}
