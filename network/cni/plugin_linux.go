package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/router"
)

// Main runs the command that a runtime passes in the environment and on stdin, by the specification. It exits on
// failure.
func Main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: check, GC: collect, Status: status}, version.All,
		"CNI plugin "+Plugin)
}

// call is one command: the plugin's configuration and its target.
type call struct {
	types.PluginConf
	StateDir string `json:"stateDir"`

	addresses
	attachment attachment
}

func callOf(args *skel.CmdArgs) (*call, error) {
	c := &call{StateDir: StateDir}
	if err := json.Unmarshal(args.StdinData, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "configuration of "+Plugin, err.Error())
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult", err.Error())
	}
	if c.CNIVersion == "" {
		c.CNIVersion = "0.1.0" // the specification's default
	}
	c.folder, c.attachment = folder(c.StateDir), attachment{c.Name, args.ContainerID, args.IfName}
	return c, nil
}

func ioFailure(operation string, err error) error {
	return types.NewError(types.ErrIOFailure, operation, err.Error())
}

// add connects a container, or leaves everything unchanged.
func add(args *skel.CmdArgs) (err error) {
	c, err := callOf(args)
	if err != nil {
		return err
	}
	network, err := c.available(types.ErrTryAgainLater, types.ErrTryAgainLater)
	if err != nil {
		return err
	}
	pod, err := openNetns(args.Netns)
	if err != nil {
		return err
	}
	defer pod.Close()
	if err := vacant(pod, args.IfName); err != nil {
		return err
	}
	r, err := c.router(network.MTU)
	if err != nil {
		return err
	}
	defer r.Close()
	own, fresh, err := c.take(c.attachment, network.Subnets)
	if err != nil {
		return takeFailure(err)
	}
	if pod, ok := podOf(args.Args); ok && network.Policies {
		if err := c.protect(pod, own); err != nil {
			return errors.Join(err, c.giveUp(fresh))
		}
	}
	cable, err := r.ConnectPodBy(pod, args.IfName, own...)
	if err == nil {
		err = c.print(args.Netns, cable, own)
	}
	if err != nil {
		return errors.Join(ioFailure("connect the container", err), r.DisconnectPod(own[0]), c.giveUp(fresh))
	}
	return nil
}

// available returns the Network that the daemon published. If there is none, its error has the code missing. If there
// is one, but the daemon does not run or is not ready, the error has the code stale: rules of policies and Services are
// not kept up to date then.
func (c *call) available(missing, stale uint) (*Network, error) {
	network, err := c.network()
	if err != nil {
		return nil, ioFailure("read the network", err)
	}
	if network == nil {
		return nil, types.NewError(missing, "coxswain cni serve has not made the network yet", "in "+c.StateDir)
	}
	ok, err := c.locked(ready)
	if err != nil {
		return nil, ioFailure("look for coxswain cni serve", err)
	}
	if !ok {
		return nil, types.NewError(stale, "coxswain cni serve does not run, or is not ready", "in "+c.StateDir)
	}
	return network, nil
}

// openNetns opens a container's network namespace. It rejects the plugin's own.
func openNetns(path string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetNS, "network namespace of the container", err.Error())
	}
	problem := ""
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &stat); err != nil || stat.Type != unix.NSFS_MAGIC {
		problem = "it is no namespace"
	} else if own, err := netns.Current(); err != nil {
		problem = err.Error()
	} else {
		if netns.Same(own, file) {
			problem = "it is the machine's"
		}
		_ = own.Close()
	}
	if problem != "" {
		_ = file.Close()
		return nil, types.NewError(types.ErrInvalidNetNS, "network namespace of the container", path+": "+problem)
	}
	return file, nil
}

// vacant returns an error if a container already has a device of this name.
func vacant(pod *os.File, device string) error {
	return netns.Do(pod, func() error {
		if _, err := net.InterfaceByName(device); err == nil {
			return types.NewError(types.ErrInvalidEnvironmentVariables,
				"the container has a device "+device+" already", "")
		}
		return nil
	})
}

// router opens the machine's router. The daemon keeps owning its namespace.
func (c *call) router(mtu int) (*router.Router, error) {
	namespace, err := c.namespace()
	if err != nil {
		return nil, ioFailure("router", err)
	}
	if namespace == nil {
		return nil, types.NewError(types.ErrTryAgainLater, "the router's network namespace is gone", "in "+c.StateDir)
	}
	r, err := router.Open(namespace, router.Options{MTU: mtu})
	if err != nil {
		return nil, ioFailure("router", err)
	}
	return r, nil
}

func takeFailure(err error) error {
	if errors.As(err, &errNoAddress{}) {
		return types.NewError(types.ErrTryAgainLater, err.Error(), "containers that end give theirs back")
	}
	return ioFailure("take an address", err)
}

// print prints the result of ADD, merged into the result of earlier plugins.
func (c *call) print(sandbox string, cable router.Cable, own []netip.Addr) error {
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if c.PrevResult != nil {
		before, err := types100.NewResultFromResult(c.PrevResult)
		if err != nil {
			return err
		}
		result = before
	}
	result.Interfaces = append(result.Interfaces,
		interfaceOf(cable.Router, c.namespaceFile()), interfaceOf(cable.Pod, sandbox))
	device := len(result.Interfaces) - 1
	for _, a := range own {
		gateway := router.Gateway(a)
		result.IPs = append(result.IPs, &types100.IPConfig{Interface: &device, Gateway: gateway.AsSlice(),
			Address: ipNet(netip.PrefixFrom(a, a.BitLen()))})
		result.Routes = append(result.Routes, &types.Route{GW: gateway.AsSlice(),
			Dst: ipNet(netip.PrefixFrom(a, 0).Masked())})
	}
	if !c.DNS.IsEmpty() {
		result.DNS = c.DNS
	}
	return types.PrintResult(result, c.CNIVersion)
}

func interfaceOf(e router.End, sandbox string) *types100.Interface {
	return &types100.Interface{Name: e.Name, Mac: e.Hardware.String(), Mtu: e.MTU, Sandbox: sandbox}
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// del disconnects a container. It is idempotent. It needs nothing of the container: deleting the router's end of the
// cable deletes the container's device, and vice versa.
func del(args *skel.CmdArgs) error {
	c, err := callOf(args)
	if err != nil {
		return err
	}
	return c.disconnect(c.attachment)
}

func (c *call) disconnect(owner attachment) error {
	if _, err := os.Stat(c.path("addresses")); errors.Is(err, os.ErrNotExist) {
		return nil // the machine restarted, or the network was removed
	}
	unlock, err := c.lock()
	if err != nil {
		return ioFailure("disconnect", err)
	}
	defer unlock()
	own, err := c.of(owner)
	if err != nil {
		return ioFailure("disconnect", err)
	}
	if len(own) == 0 {
		return nil
	}
	namespace, err := c.namespace()
	if err != nil {
		return ioFailure("router", err)
	}
	if namespace != nil { // without a namespace all cables are gone
		r, err := router.Open(namespace, router.Options{})
		if err != nil {
			return ioFailure("router", err)
		}
		defer r.Close()
		if err := r.DisconnectPod(own[0]); err != nil {
			return ioFailure("disconnect", err)
		}
	}
	if err := c.giveUp(own); err != nil {
		return ioFailure("give up addresses", err)
	}
	return nil
}

// collect disconnects all containers of the network that the runtime does not name as valid.
func collect(args *skel.CmdArgs) error {
	c, err := callOf(args)
	if err != nil {
		return err
	}
	valid := map[string]bool{}
	for _, a := range c.ValidAttachments {
		valid[attachment{c.Name, a.ContainerID, a.IfName}.String()] = true
	}
	stale, err := c.stale(c.Name, valid)
	if err != nil {
		return ioFailure("look for addresses", err)
	}
	for _, owner := range stale {
		err = errors.Join(err, c.disconnect(owner))
	}
	return err
}

// status reports whether a container could be connected now.
func status(args *skel.CmdArgs) error {
	c, err := callOf(args)
	if err != nil {
		return err
	}
	network, err := c.available(types.ErrPluginNotAvailable, types.ErrLimitedConnectivity)
	if err != nil {
		return err
	}
	namespace, err := c.namespace()
	if err != nil {
		return ioFailure("router", err)
	}
	if namespace == nil {
		return types.NewError(types.ErrLimitedConnectivity, "the router's network namespace is gone", "in "+c.StateDir)
	}
	_ = namespace.Close()
	if err := c.free(network.Subnets); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), fmt.Sprintf("of %v", network.Subnets))
	}
	return nil
}
