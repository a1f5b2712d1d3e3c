package router

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// AcceptForwarded makes chains of other programs accept forwarded packets of pods, if they drop forwarded packets by
// now and the machine forwards for this router. Docker changes the chain FORWARD of iptables when it starts, which may
// be at any time, so callers should repeat AcceptForwarded.
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

// isGuarded reports whether this process or an earlier one has called forwardFor for a subnet.
func isGuarded(subnet netip.Prefix) (guarded bool, err error) {
	err = nft.Once(nil, func(t *nft.Transaction) error {
		chains, err := t.ListChainsOfTableFamily(tableFamily(subnet.Addr()))
		guarded = slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
			return c.Table.Name == tableName && c.Name == guardOf(subnet)
		})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("list chains of the machine's packet filter: %w", err)
	}
	return guarded, nil
}
