package cni_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/router"
)

func TestPlugin_ConnectsContainersOfBothFamilies(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24", "fd00:1::/64")
	web := m.container("web")
	web.IfName = "net1"
	result, err := web.add()
	require.NoError(t, err)
	require.Equal(t, []string{"10.1.0.2", "fd00:1::2"}, addressesOf(result), "the first two are the router's and the machine's")
	require.NoError(t, web.check())
	require.Equal(t, []string{"10.1.0.2/32", "fd00:1::2/128"},
		[]string{result.IPs[0].Address.String(), result.IPs[1].Address.String()})
	require.Equal(t, "169.254.0.1", result.Routes[0].GW.String())
	require.Equal(t, "0.0.0.0/0", result.Routes[0].Dst.String())
	require.Equal(t, "::/0", result.Routes[1].Dst.String())
	own := result.Interfaces[*result.IPs[0].Interface]
	require.Equal(t, web.NetNS, own.Sandbox)
	require.Equal(t, filepath.Join(m.state, "netns"), result.Interfaces[0].Sandbox, "the other end is in the router")
	m.do(web.namespace, func() error {
		device, err := net.InterfaceByName("net1")
		require.NoError(t, err)
		require.Equal(t, device.HardwareAddr.String(), own.Mac)
		require.Equal(t, 1400, device.MTU)
		require.Equal(t, 1400, own.Mtu)
		return nil
	})

	web.serve("web")
	client, addresses := m.connected("client")
	m.reaches(client.namespace, "10.1.0.2", "web to "+addresses[0])
	m.reaches(client.namespace, "fd00:1::2", "web to "+addresses[1])
	m.reaches(m.namespace, "10.1.0.2", "web to 10.1.0.1")
	require.NoError(t, web.del())
	require.NoError(t, web.del(), "again")
	require.Equal(t, 1, m.cables())
	require.Len(t, m.taken(), 2)
	m.do(web.namespace, func() error {
		_, err := net.InterfaceByName("net1")
		require.Error(t, err, "the container's end is deleted too")
		return nil
	})
}

func TestPlugin_SupportsEveryVersion(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24")
	for _, version := range []string{"0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		m.list = m.configuration(version)
		c := m.container("c")
		result, err := c.add()
		require.NoError(t, err, version)
		require.Len(t, result.IPs, 1, version)
		if version > "0.4" {
			require.NoError(t, c.check(), version)
		}
		require.NoError(t, c.del(), version)
	}
	require.Empty(t, m.taken())
}

func TestPlugin_AllocatesDistinctAddressesUntilTheSubnetIsFull(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/26", "fd00:1::/64")
	const room = 61 // the subnet without the router's, the machine's and the broadcast address
	var adding sync.WaitGroup
	var mu sync.Mutex
	seen, all, refused := map[string]bool{}, []*container{}, 0
	containers := make([]*container, room+9)
	for i := range containers {
		containers[i] = m.container(fmt.Sprint("c", i))
	}
	for worker := range 2 {
		adding.Go(func() {
			for i := worker; i < len(containers); i += 2 {
				result, err := containers[i].add()
				mu.Lock()
				if err != nil {
					refused++
					require.Equal(t, types.ErrTryAgainLater, code(t, err))
					require.ErrorContains(t, err, "no address of 10.1.0.0/26 is free")
				} else {
					all = append(all, containers[i])
					for _, a := range addressesOf(result) {
						require.False(t, seen[a], a)
						seen[a] = true
					}
				}
				mu.Unlock()
			}
		})
	}
	adding.Wait()
	require.Len(t, all, room)
	require.Equal(t, 9, refused)
	require.Len(t, m.taken(), 2*room, "a container without an IPv4 address has no IPv6 address either")
	require.Equal(t, types.ErrPluginNotAvailable, code(t, m.status()))
	require.NoError(t, all[7].del())
	require.NoError(t, m.status())
	m.connected("after")
}

func TestPlugin_ReusesAddressesLast(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/29")
	var allocated []string
	for range 6 {
		c, addresses := m.connected("c")
		allocated = append(allocated, addresses...)
		require.NoError(t, c.del())
	}
	require.Equal(t, strings.Fields("10.1.0.2 10.1.0.3 10.1.0.4 10.1.0.5 10.1.0.6 10.1.0.2"), allocated)
}

func TestPlugin_RejectsInvalidContainers(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24")
	connected, _ := m.connected("connected")
	for _, c := range []struct {
		name    string
		change  func(*container)
		code    uint
		message string
	}{
		{"a container twice", func(c *container) { *c = *connected }, 4, "has a device eth0 already"},
		{"no namespace", func(c *container) { c.NetNS = "/proc/0/ns/net" }, 8, "no such file"},
		{"a file that is none", func(c *container) { c.NetNS = "/proc/self/maps" }, 8, "is no namespace"},
		{"the machine's own", func(c *container) {
			c.NetNS = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), m.namespace.Fd())
		}, 8, "is the machine's"},
		{"a way out of the folder", func(c *container) { c.ContainerID = "../../x" }, 4, "containerID"},
		{"a device with a slash", func(c *container) { c.IfName = "a/b" }, 4, "interface name"},
		{"a device with a long name", func(c *container) { c.IfName = "sixteencharacter" }, 4, "interface name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			container := m.container("c")
			c.change(container)
			_, err := container.add()
			require.ErrorContains(t, err, c.message)
			require.Equal(t, c.code, code(t, err))
		})
	}
	require.Len(t, m.taken(), 1)
	require.Equal(t, 1, m.cables())
	require.NoError(t, connected.check(), "an existing container stays connected")
}

// These are texts that libcni would not send.
func TestPlugin_RejectsInvalidInput(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24")
	for _, c := range []struct {
		command, container, stdin string
		code                      uint
	}{
		{"ADD", "c", `{`, types.ErrDecodingFailure},
		{"ADD", "c", `{"cniVersion": "1.1.0"}`, types.ErrInvalidNetworkConfig},
		{"ADD", "c", `{"cniVersion": "7.0.0", "name": "n"}`, types.ErrIncompatibleCNIVersion},
		{"ADD", "c", `{"cniVersion": "1.1.0", "name": "../n"}`, types.ErrInvalidNetworkConfig},
		{"ADD", "c", `{"cniVersion": "1.1.0", "name": "n", "stateDir": 7}`, types.ErrDecodingFailure},
		{"ADD", "../c", `{"cniVersion": "1.1.0", "name": "n"}`, types.ErrInvalidEnvironmentVariables},
		{"ADD", "", `{"cniVersion": "1.1.0", "name": "n"}`, types.ErrInvalidEnvironmentVariables},
		{"DEL", "../c", `{"cniVersion": "1.1.0", "name": "n"}`, types.ErrInvalidEnvironmentVariables},
		{"CHECK", "c", `{"cniVersion": "1.1.0", "name": "n"}`, types.ErrInvalidNetworkConfig},
		{"GC", "c", `{"cniVersion": "1.0.0", "name": "n"}`, types.ErrIncompatibleCNIVersion},
		{"MOVE", "c", `{"cniVersion": "1.1.0", "name": "n"}`, types.ErrInvalidEnvironmentVariables},
	} {
		t.Run(c.command+" "+c.stdin, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			plugin := exec.Command(os.Args[0])
			plugin.Env = []string{"CNI_COMMAND=" + c.command, "CNI_CONTAINERID=" + c.container, "CNI_IFNAME=eth0",
				"CNI_NETNS=/proc/0/ns/net", "CNI_PATH=/"}
			plugin.Stdin, plugin.Stdout = strings.NewReader(c.stdin), &out
			require.Error(t, netns.Do(m.namespace, plugin.Run))
			var failed types.Error
			require.NoError(t, json.Unmarshal(out.Bytes(), &failed), out.String())
			require.Equal(t, c.code, failed.Code, failed.Msg)
		})
	}
}

func TestPlugin_CheckReportsChanges(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24", "fd00:1::/64")
	within := func(c *container, do func(eth0 netlink.Link) error) {
		m.do(c.namespace, func() error {
			eth0, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return do(eth0)
		})
	}
	for _, c := range []struct {
		name, message string
		change        func(*container, []string)
	}{
		{"address", "does not have the address", func(c *container, addresses []string) {
			within(c, func(eth0 netlink.Link) error {
				a, err := netlink.ParseAddr(addresses[0] + "/32")
				require.NoError(t, err)
				return netlink.AddrDel(eth0, a)
			})
		}},
		{"route", "no route to ::/0", func(c *container, _ []string) {
			within(c, func(eth0 netlink.Link) error {
				return netlink.RouteDel(&netlink.Route{LinkIndex: eth0.Attrs().Index, Family: netlink.FAMILY_V6,
					Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}})
			})
		}},
		{"hardware address", "has the address", func(c *container, _ []string) {
			within(c, func(eth0 netlink.Link) error {
				return netlink.LinkSetHardwareAddr(eth0, net.HardwareAddr{2, 0, 0, 0, 0, 1})
			})
		}},
		{"MTU", "MTU of 1300", func(c *container, _ []string) {
			within(c, func(eth0 netlink.Link) error { return netlink.LinkSetMTU(eth0, 1300) })
		}},
		{"down", "down", func(c *container, _ []string) { within(c, netlink.LinkSetDown) }},
		{"device", "no device", func(c *container, _ []string) { within(c, netlink.LinkDel) }},
		{"router", "has no route to", func(_ *container, addresses []string) {
			namespace, err := m.host.Namespace()
			require.NoError(t, err)
			defer namespace.Close()
			m.do(namespace, func() error {
				_, destination, err := net.ParseCIDR(addresses[0] + "/32")
				require.NoError(t, err)
				return netlink.RouteDel(&netlink.Route{Dst: destination, Scope: netlink.SCOPE_LINK})
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			container, addresses := m.connected("c")
			require.NoError(t, container.check())
			c.change(container, addresses)
			require.ErrorContains(t, container.check(), c.message)
			require.NoError(t, container.del())
		})
	}
}

func TestPlugin_GCDisconnectsOtherContainers(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24", "fd00:1::/64")
	valid, addresses := m.connected("valid")
	for _, id := range []string{"lost", "forgotten"} {
		m.connected(id)
	}
	require.NoError(t, os.Symlink("another/lost/eth0", filepath.Join(m.state, "addresses", "10.1.0.99")))
	require.NoError(t, valid.try(func(ctx context.Context) error {
		return m.runtime.GCNetworkList(ctx, m.list, &libcni.GCArgs{
			ValidAttachments: []types.GCAttachment{{ContainerID: "valid", IfName: "eth0"}}})
	}))
	require.Equal(t, map[string]string{addresses[0]: "coxswain/valid/eth0", addresses[1]: "coxswain/valid/eth0",
		"10.1.0.99": "another/lost/eth0"}, m.taken())
	require.Equal(t, 1, m.cables())
	require.NoError(t, valid.check())
}

func TestPlugin_DELCleansUpAfterAKilledADD(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24", "fd00:1::/64")
	for i := range 15 {
		c := m.container("c")
		plugin := exec.Command(os.Args[0])
		plugin.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_IFNAME=eth0", "CNI_NETNS=" + c.NetNS,
			"CNI_PATH=/"}
		plugin.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "coxswain", "stateDir": %q}`,
			m.state))
		m.do(m.namespace, plugin.Start)
		ended := make(chan error, 1)
		go func() { ended <- plugin.Wait() }()
		for looks := 0; len(m.taken()) <= i%3 && len(ended) == 0; looks++ {
		} // until zero, one or two addresses are allocated
		_ = plugin.Process.Kill() // it may have ended already
		<-ended
		if i%2 == 0 { // a runtime may retry before DEL
			if _, err := c.add(); err != nil {
				require.ErrorContains(t, err, "already")
			}
			require.Len(t, m.taken(), 2)
		}
		require.NoError(t, c.del())
		require.Empty(t, m.taken())
		require.Zero(t, m.cables())
	}
}

func TestPlugin_DeletesAndChecksWithoutTheDaemon(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24")
	require.NoError(t, m.status())
	web, _ := m.connected("web")
	other, _ := m.connected("other")
	web.serve("web")
	m.stop()
	require.Equal(t, types.ErrLimitedConnectivity, code(t, m.status()))
	_, err := m.container("late").add()
	require.Equal(t, types.ErrTryAgainLater, code(t, err), "the policies of its pod would not be enforced")
	m.reaches(m.namespace, "10.1.0.2", "web to 10.1.0.1")
	require.NoError(t, web.check())
	require.NoError(t, other.del())
	m.serve("10.1.0.0/24")
	require.NoError(t, m.status())
	m.reaches(m.namespace, "10.1.0.2", "web to 10.1.0.1")
	late, _ := m.connected("late")
	m.reaches(late.namespace, "10.1.0.2", "web to 10.1.0.4")
}

func TestPlugin_DeletesContainersAfterARestartOfTheMachine(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24")
	web, _ := m.connected("web")
	require.NoError(t, m.host.Remove())
	require.Equal(t, types.ErrPluginNotAvailable, code(t, m.status()))
	require.NoError(t, web.del())
	m.serve("10.1.0.0/24")
	m.connected("web")
}

func TestPlugin_ContainersCannotUseForeignAddresses(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24")
	web, addresses := m.connected("web")
	thief, _ := m.connected("thief")
	web.serve("web")
	victim := netip.MustParseAddr("10.1.0.9")
	m.do(thief.namespace, func() error {
		eth0, err := netlink.LinkByName(router.PodDevice)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: victim.AsSlice(), Mask: net.CIDRMask(32, 32)}})
	})
	m.do(thief.namespace, func() error {
		dialer := net.Dialer{Timeout: 300e6, LocalAddr: &net.TCPAddr{IP: victim.AsSlice()}}
		_, err := dialer.Dial("tcp", addresses[0]+":80")
		require.ErrorContains(t, err, "timeout")
		return nil
	})
	m.reaches(thief.namespace, addresses[0], "web to 10.1.0.3")
}
