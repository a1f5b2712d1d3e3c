//go:build linux

package sandbox

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPod_SysctlsAreSetInItsOwnNamespaces(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	const ports, shared = "/proc/sys/net/ipv4/ip_unprivileged_port_start", "/proc/sys/kernel/shm_rmid_forced"
	machine := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	before := machine(ports) + machine(shared)
	require.NoError(t,
		p.SetSysctls(t.Context(), []Sysctl{{"net.ipv4.ip_unprivileged_port_start", "79"}, {"kernel/shm_rmid_forced", "1"}}))
	exit, log := finish(t, p, shell(p, "cat "+ports+" "+shared))
	require.Zero(t, exit.Code)
	require.Equal(t, "79\n1\n", log)
	require.Equal(t, before, machine(ports)+machine(shared), "the machine has its own")

	require.ErrorContains(t, p.SetSysctls(t.Context(), []Sysctl{{"net.ipv4.no_such_thing", "1"}}),
		`sysctl "net.ipv4.no_such_thing": `)
	require.ErrorContains(t, p.SetSysctls(t.Context(), []Sysctl{{"net/ipv4/ip_unprivileged_port_start", "none"}}),
		"invalid argument")
	for _, path := range []string{"net/../kernel/core_pattern", "../sys/kernel/core_pattern", "net//core"} {
		require.ErrorContains(t, p.SetSysctls(t.Context(), []Sysctl{{path, "x"}}), "invalid argument", path)
	}
}
