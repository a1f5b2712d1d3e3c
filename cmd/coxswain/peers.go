package main

import (
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver/componentstatus"
)

// addPeers adds the flag of a server without controllers and scheduler on its machine.
func (f *serverFlags) addPeers(fs *pflag.FlagSet) {
	fs.StringToStringVar(&f.peers, "component-health", maps.Clone(componentstatus.DefaultAddresses),
		"where controller-manager and scheduler serve /healthz, for kubectl get componentstatuses")
}

// checkPeers checks the flag, and adds the default addresses of components that it does not name.
func (f *serverFlags) checkPeers() error {
	for _, name := range slices.Sorted(maps.Keys(f.peers)) {
		if componentstatus.DefaultAddresses[name] == "" {
			return fmt.Errorf("--component-health: %q is not controller-manager or scheduler", name)
		}
		if _, _, err := net.SplitHostPort(f.peers[name]); err != nil {
			return fmt.Errorf("--component-health %s: %w", name, err)
		}
	}
	for name, address := range componentstatus.DefaultAddresses {
		if f.peers[name] == "" {
			f.peers[name] = address
		}
	}
	return nil
}
