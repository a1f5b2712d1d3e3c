package cni_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/network/cni"
)

func TestHost_DropsTheRouterWhenSubnetsChangeAndNoContainerIsConnected(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24")
	web, _ := m.connected("web")
	require.NoError(t, m.host.Withdraw())
	before := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	after := []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}
	require.NoError(t, m.host.Admit(before), "the same subnets are reused")
	require.ErrorIs(t, m.host.Admit(after), cni.ErrInUse)
	require.NoError(t, web.check(), "the container is still connected")
	require.NoError(t, web.del())
	m.stop()
	m.serve("10.2.0.0/24")
	_, addresses := m.connected("web")
	require.Equal(t, []string{"10.2.0.2"}, addresses)
}

func TestHost_HasItsFolderAlone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.Mkdir(dir, 0o777))
	first, err := cni.Open(dir)
	require.NoError(t, err)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	_, err = cni.Open(dir)
	require.ErrorContains(t, err, "another daemon has it")
	first.Close()
	second, err := cni.Open(dir)
	require.NoError(t, err)
	second.Close()

	elsewhere := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, elsewhere))
	_, err = cni.Open(elsewhere)
	require.ErrorContains(t, err, "no folder of this process's user")
}

func TestInstall_ReplacesThePluginAndChainsOthers(t *testing.T) {
	t.Parallel()
	i := cni.Install{BinDir: filepath.Join(t.TempDir(), "bin"), ConfDir: filepath.Join(t.TempDir(), "net.d"),
		StateDir: "/run/x", Chain: []string{"portmap", "tuning"}}
	program, err := os.Executable()
	require.NoError(t, err)
	want, err := os.Stat(program)
	require.NoError(t, err)
	for _, copied := range []bool{false, true, false} {
		i.Copy = copied
		require.NoError(t, i.Plugin())
		info, err := os.Lstat(filepath.Join(i.BinDir, cni.Plugin))
		require.NoError(t, err)
		if copied {
			require.Equal(t, want.Size(), info.Size())
			require.Equal(t, os.FileMode(0o755), info.Mode())
		} else {
			require.NotZero(t, info.Mode()&os.ModeSymlink)
		}
	}
	require.NoError(t, i.Configuration())
	conf := filepath.Join(i.ConfDir, "10-coxswain.conflist")
	document, err := os.ReadFile(conf)
	require.NoError(t, err)
	require.JSONEq(t, `{"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"], "name": "coxswain", "plugins": [
		{"type": "coxswain-cni", "stateDir": "/run/x"},
		{"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "tuning"}]}`, string(document))
	require.NoError(t, i.Remove())
	require.NoError(t, i.Remove(), "again")
	require.NoFileExists(t, conf)
}
