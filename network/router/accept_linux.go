package router

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// AcceptForwarded has chains of others that have begun to drop forwarded packets accept those of pods, if the machine
// forwards for this router. Docker changes the chain FORWARD of iptables when it starts, which may be at any time, so
// that callers repeat AcceptForwarded.
func (r *Router) AcceptForwarded() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, subnets := range r.devices {
		for _, subnet := range subnets {
			forwards, err := isGuarded(subnet)
			if forwards {
				err = acceptForwarded(subnet.Addr())
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// isGuarded reports whether forwardFor has been called for a subnet, by this process or an earlier one.
func isGuarded(subnet netip.Prefix) (is bool, err error) {
	err = nft.Once(nil, func(t *nft.Transaction) error {
		chains, err := t.ListChainsOfTableFamily(tableFamily(subnet.Addr()))
		is = slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
			return c.Table.Name == tableName && c.Name == guardOf(subnet)
		})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("chains of the machine's packet filter: %w", err)
	}
	return is, nil
}
