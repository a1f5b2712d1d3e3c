package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"

	"github.com/coxswain-dev/coxswain/network/netns"
)

// LoopbackMain runs the plugin "loopback": it brings up the device lo. Many runtimes call it for each sandbox before
// they call for a network, and distributions package it apart from the runtime.
func LoopbackMain() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: addLoopback, Del: delLoopback, Check: checkLoopback,
		GC:     func(*skel.CmdArgs) error { return nil },
		Status: func(*skel.CmdArgs) error { return nil }}, version.All, "CNI plugin "+Loopback)
}

func loopbackConf(args *skel.CmdArgs) (*types.PluginConf, error) {
	conf := &types.PluginConf{}
	err := json.Unmarshal(args.StdinData, conf)
	if err == nil {
		err = version.ParsePrevResult(conf)
	}
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "configuration of "+Loopback, err.Error())
	}
	return conf, nil
}

// inLoopback calls do with the device lo of a container, inside the container's namespace.
func inLoopback(args *skel.CmdArgs, do func(lo netlink.Link) error) error {
	pod, err := openNetns(args.Netns)
	if err != nil {
		return err
	}
	defer pod.Close()
	err = netns.Do(pod, func() error {
		lo, err := netlink.LinkByName(loopbackDevice)
		if err != nil {
			return err
		}
		return do(lo)
	})
	if err != nil {
		return ioFailure("device lo", err)
	}
	return nil
}

const loopbackDevice = "lo"

// addLoopback brings lo up, which also adds its addresses. It prints them as the result, unless there is a result of an
// earlier plugin.
func addLoopback(args *skel.CmdArgs) error {
	conf, err := loopbackConf(args)
	if err != nil {
		return err
	}
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	err = inLoopback(args, func(lo netlink.Link) error {
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		addresses, err := netlink.AddrList(lo, netlink.FAMILY_ALL)
		for _, a := range addresses {
			result.IPs = append(result.IPs, &types100.IPConfig{Interface: types100.Int(0), Address: *a.IPNet})
		}
		result.Interfaces = []*types100.Interface{{Name: loopbackDevice, Mac: lo.Attrs().HardwareAddr.String(),
			Sandbox: args.Netns}}
		return err
	})
	if err != nil {
		return err
	}
	if conf.PrevResult != nil {
		return types.PrintResult(conf.PrevResult, conf.CNIVersion)
	}
	return types.PrintResult(result, conf.CNIVersion)
}

// delLoopback only checks its configuration: the device is deleted with the container.
func delLoopback(args *skel.CmdArgs) error {
	_, err := loopbackConf(args)
	return err
}

func checkLoopback(args *skel.CmdArgs) error {
	if _, err := loopbackConf(args); err != nil {
		return err
	}
	return inLoopback(args, func(lo netlink.Link) error {
		if lo.Attrs().Flags&net.FlagUp == 0 {
			return errors.New("it is down")
		}
		return nil
	})
}

// installLoopback installs the plugin "loopback", if the runtime has none or an earlier one of ours.
func (i Install) installLoopback(program, path string) error {
	ours, err := isOurs(path, program)
	if err != nil || !ours {
		return err
	}
	if err := i.replace(program, path); err != nil {
		return fmt.Errorf("install the plugin %s: %w", Loopback, err)
	}
	return nil
}
