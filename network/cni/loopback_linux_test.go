package cni_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/coxswain-dev/coxswain/network/cni"
)

// loopbackConfiguration is the configuration that containerd passes before it calls for a network.
const loopbackConfiguration = `{"cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}`

func TestLoopback_BringsUpTheDevice(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24")
	list, err := libcni.ConfListFromBytes([]byte(loopbackConfiguration))
	require.NoError(t, err)
	c := m.container("sandbox")
	c.IfName = "lo"
	var result *types100.Result
	require.NoError(t, c.try(func(ctx context.Context) error {
		r, err := m.runtime.AddNetworkList(ctx, list, &c.RuntimeConf)
		if err == nil {
			result, err = types100.NewResultFromResult(r)
		}
		return err
	}))
	require.Contains(t, addressesOf(result), "127.0.0.1")
	m.do(c.namespace, func() error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		return conn.Close()
	})
	check := func() error {
		return c.try(func(ctx context.Context) error { return m.runtime.CheckNetworkList(ctx, list, &c.RuntimeConf) })
	}
	list.CNIVersion = "1.0.0" // earlier versions have no CHECK
	require.NoError(t, check())
	m.do(c.namespace, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(lo)
	})
	require.ErrorContains(t, check(), "it is down")
	for range 2 {
		require.NoError(t, c.try(func(ctx context.Context) error {
			return m.runtime.DelNetworkList(ctx, list, &c.RuntimeConf)
		}))
	}
}

func TestInstall_KeepsAnExistingLoopbackPlugin(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	theirs := filepath.Join(bin, cni.Loopback)
	require.NoError(t, os.WriteFile(theirs, []byte("theirs"), 0o755))
	i := cni.Install{BinDir: bin, ConfDir: t.TempDir(), StateDir: t.TempDir()}
	require.NoError(t, i.Plugin())
	content, err := os.ReadFile(theirs)
	require.NoError(t, err)
	require.Equal(t, "theirs", string(content))
	require.NoError(t, os.Remove(theirs))
	for range 2 {
		require.NoError(t, i.Plugin())
		_, err := os.Stat(theirs)
		require.NoError(t, err)
	}
}
