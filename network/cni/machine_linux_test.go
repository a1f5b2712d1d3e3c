package cni_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/coxswain-dev/coxswain/network/cni"
	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/router"
)

const (
	patience = 20 * time.Second
	step     = 5 * time.Millisecond
)

// TestMain runs the plugin if a runtime started this program.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		if filepath.Base(os.Args[0]) == cni.Loopback {
			cni.LoopbackMain()
		} else {
			cni.Main()
		}
		return
	}
	os.Exit(m.Run())
}

// machine is a network namespace that stands for a machine, with a daemon and a runtime that uses libcni.
type machine struct {
	*testing.T
	namespace *os.File
	state     string
	host      *cni.Host
	// protect, if not nil, answers the plugin. It is set before serve.
	protect func(context.Context, cni.Pod, []netip.Addr) error
	runtime *libcni.CNIConfig
	list    *libcni.NetworkConfigList
}

// newMachine starts a machine and its Node with these subnets.
func newMachine(t *testing.T, subnets ...string) *machine {
	t.Helper()
	m := &machine{T: t, namespace: newNamespace(t), state: filepath.Join(t.TempDir(), "state")}
	bin, conf := t.TempDir(), t.TempDir()
	install := cni.Install{BinDir: bin, ConfDir: conf, StateDir: m.state}
	require.NoError(t, install.Plugin())
	require.NoError(t, install.Configuration())
	var err error
	m.list, err = libcni.ConfListFromFile(filepath.Join(conf, "10-coxswain.conflist"))
	require.NoError(t, err)
	require.Equal(t, "1.1.0", m.list.CNIVersion, "the newest version that both support")
	m.runtime = libcni.NewCNIConfigWithCacheDir([]string{bin}, t.TempDir(),
		&invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}) // its default executor has a data race
	m.serve(subnets...)
	t.Cleanup(func() {
		m.stop()
		host, err := cni.Open(m.state)
		require.NoError(t, err)
		require.NoError(t, host.Remove())
	})
	return m
}

func newNamespace(t *testing.T) *os.File {
	t.Helper()
	f, err := netns.New()
	if errors.Is(err, fs.ErrPermission) {
		t.Skipf("SKIPPED: containers' networks take root, and are not tested here: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	require.NoError(t, netns.Do(f, func() error { // as runtimes do
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}))
	return f
}

// serve starts a daemon.
func (m *machine) serve(subnets ...string) {
	m.Helper()
	var err error
	m.host, err = cni.Open(m.state)
	require.NoError(m, err)
	n := cni.Network{MTU: 1400}
	for _, s := range subnets {
		n.Subnets = append(n.Subnets, netip.MustParsePrefix(s))
	}
	require.NoError(m, m.host.Admit(n.Subnets))
	m.do(m.namespace, func() error {
		namespace, err := m.host.Namespace()
		if err != nil {
			return err
		}
		r, err := router.Open(namespace, router.Options{MTU: n.MTU})
		if err != nil {
			return err
		}
		defer r.Close()
		if namespace == nil {
			err = m.host.Keep(r.Namespace())
		}
		return errors.Join(err, r.AddNode("cox0", n.Subnets...))
	})
	if n.Policies = m.protect != nil; n.Policies {
		stop, err := m.host.Answer(context.Background(), m.protect)
		require.NoError(m, err)
		m.Cleanup(stop)
	}
	require.NoError(m, m.host.Publish(n))
}

// stop ends the daemon as kill -9 would.
func (m *machine) stop() { m.host.Close() }

func (m *machine) do(namespace *os.File, do func() error) {
	m.Helper()
	require.NoError(m, netns.Do(namespace, do))
}

// container is a runtime's view of a container.
type container struct {
	m         *machine
	namespace *os.File
	libcni.RuntimeConf
}

func (m *machine) container(id string) *container {
	m.Helper()
	namespace := newNamespace(m.T)
	return &container{m, namespace, libcni.RuntimeConf{ContainerID: id, IfName: "eth0",
		NetNS: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), namespace.Fd())}}
}

func (c *container) try(call func(context.Context) error) error {
	return netns.Do(c.m.namespace, func() error { return call(context.Background()) })
}

func (c *container) add() (result *types100.Result, err error) {
	err = c.try(func(ctx context.Context) error {
		r, err := c.m.runtime.AddNetworkList(ctx, c.m.list, &c.RuntimeConf)
		if err != nil {
			return err
		}
		result, err = types100.NewResultFromResult(r)
		return err
	})
	return result, err
}

func (c *container) check() error {
	return c.try(func(ctx context.Context) error { return c.m.runtime.CheckNetworkList(ctx, c.m.list, &c.RuntimeConf) })
}

func (c *container) del() error {
	return c.try(func(ctx context.Context) error { return c.m.runtime.DelNetworkList(ctx, c.m.list, &c.RuntimeConf) })
}

func (m *machine) status() error {
	return netns.Do(m.namespace, func() error {
		return m.runtime.GetStatusNetworkList(context.Background(), m.list)
	})
}

// connected connects a container and returns it with its addresses.
func (m *machine) connected(id string) (*container, []string) {
	m.Helper()
	c := m.container(id)
	result, err := c.add()
	require.NoError(m, err)
	return c, addressesOf(result)
}

func addressesOf(r *types100.Result) (all []string) {
	for _, ip := range r.IPs {
		all = append(all, ip.Address.IP.String())
	}
	return all
}

// taken returns the allocated addresses with their attachments.
func (m *machine) taken() map[string]string {
	m.Helper()
	entries, err := os.ReadDir(filepath.Join(m.state, "addresses"))
	require.NoError(m, err)
	taken := map[string]string{}
	for _, e := range entries {
		if taken[e.Name()], err = os.Readlink(filepath.Join(m.state, "addresses", e.Name())); err != nil {
			taken[e.Name()] = err.Error()
		}
	}
	return taken
}

// cables counts the devices of containers in the router.
func (m *machine) cables() (count int) {
	m.Helper()
	namespace, err := m.host.Namespace()
	require.NoError(m, err)
	defer namespace.Close()
	m.do(namespace, func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if len(l.Attrs().Name) > 3 && l.Attrs().Name[:3] == "pod" {
				count++
			}
		}
		return err
	})
	return count
}

// serve answers every TCP connection to port 80 with a word and the client's address.
func (c *container) serve(word string) {
	c.m.Helper()
	var l net.Listener
	c.m.do(c.namespace, func() (err error) {
		l, err = net.Listen("tcp", ":80")
		return err
	})
	c.m.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
			_, _ = fmt.Fprintf(conn, "%s to %s", word, from)
			_ = conn.Close()
		}
	}()
}

// reaches polls port 80 of an address from a namespace until the answer is right.
func (m *machine) reaches(from *os.File, address, want string) {
	m.Helper()
	var got string
	arrives := func() bool {
		var conn net.Conn
		err := netns.Do(from, func() (err error) {
			conn, err = net.DialTimeout("tcp", net.JoinHostPort(address, "80"), 2*time.Second)
			return err
		})
		if err != nil {
			got = err.Error()
			return false
		}
		defer conn.Close()
		answer, _ := io.ReadAll(conn)
		got = string(answer)
		return got == want
	}
	if !assert.Eventually(m, arrives, patience, step) {
		require.Equal(m, want, got, address)
	}
}

// code returns the code of an error of the specification.
func code(t *testing.T, err error) uint {
	t.Helper()
	var failed *types.Error
	require.ErrorAs(t, err, &failed)
	return failed.Code
}

// configuration returns a configuration of one plugin, of some version.
func (m *machine) configuration(version string) *libcni.NetworkConfigList {
	m.Helper()
	document, err := json.Marshal(map[string]any{"cniVersion": version, "name": "coxswain",
		"plugins": []any{map[string]any{"type": "coxswain-cni", "stateDir": m.state}}})
	require.NoError(m, err)
	list, err := libcni.ConfListFromBytes(document)
	require.NoError(m, err)
	return list
}
