package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// attachment identifies a container's device in a network. No field contains a slash: the specification forbids it, and
// package skel rejects it.
type attachment struct{ network, container, device string }

func (a attachment) String() string { return a.network + "/" + a.container + "/" + a.device }

// addresses is the set of allocated addresses. Each is a symbolic link named after the address, with the attachment as
// its target. A link exists with its content or not at all, however a process ends.
type addresses struct{ folder }

// errNoAddress reports that a subnet has no free address.
type errNoAddress struct{ subnet netip.Prefix }

func (e errNoAddress) Error() string { return fmt.Sprintf("no address of %s is free", e.subnet) }

// lock excludes all other processes from allocating or freeing addresses, until unlock.
func (a addresses) lock() (unlock func(), err error) {
	file, err := os.OpenFile(a.path("addresses.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(file.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock addresses: %w", err)
	}
	return func() { _ = file.Close() }, nil
}

func (a addresses) link(address netip.Addr) string { return a.path("addresses/" + address.String()) }

// all returns the allocated addresses with their attachments as text.
func (a addresses) all() (map[netip.Addr]string, error) {
	entries, err := os.ReadDir(a.path("addresses"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	taken := make(map[netip.Addr]string, len(entries))
	for _, e := range entries {
		address, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue // the name is not an address
		}
		target, err := os.Readlink(a.link(address))
		if errors.Is(err, fs.ErrNotExist) {
			continue // freed since ReadDir
		}
		if err != nil {
			return nil, err
		}
		taken[address] = target
	}
	return taken, nil
}

// of returns the addresses of an attachment in ascending order, IPv4 before IPv6, so that the first one is
// deterministic.
func (a addresses) of(owner attachment) (own []netip.Addr, err error) {
	taken, err := a.all()
	for address, target := range taken {
		if target == owner.String() {
			own = append(own, address)
		}
	}
	slices.SortFunc(own, netip.Addr.Compare)
	return own, err
}

// take allocates one address of each subnet for an attachment, or none. If the attachment already has an address of a
// subnet, as after an interrupted attempt, that address is reused. fresh lists the addresses that this call allocated.
func (a addresses) take(owner attachment, subnets []netip.Prefix) (own, fresh []netip.Addr, err error) {
	unlock, err := a.lock()
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	taken, err := a.all()
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err, own, fresh = errors.Join(err, a.giveUp(fresh)), nil, nil
		}
	}()
	for _, subnet := range subnets {
		address, ok := has(taken, owner, subnet)
		if !ok {
			if address, err = a.next(subnet, taken); err != nil {
				return nil, fresh, err
			}
			if err = os.Symlink(owner.String(), a.link(address)); err != nil {
				return nil, fresh, err
			}
			fresh = append(fresh, address)
			if err = write(a.lastFile(subnet), []byte(address.String()), 0o600); err != nil {
				return nil, fresh, err
			}
		}
		own = append(own, address)
	}
	slices.SortFunc(own, netip.Addr.Compare)
	return own, fresh, nil
}

func has(taken map[netip.Addr]string, owner attachment, subnet netip.Prefix) (netip.Addr, bool) {
	for address, target := range taken {
		if target == owner.String() && subnet.Contains(address) {
			return address, true
		}
	}
	return netip.Addr{}, false
}

func (a addresses) lastFile(subnet netip.Prefix) string {
	if subnet.Addr().Is4() {
		return a.path("last4")
	}
	return a.path("last6")
}

// next returns the first free address after the one that was allocated last, so that an address rests as long as
// possible before it is reused. Every address that it skips is allocated, so the search takes at most len(taken)+1
// steps, whatever the size of the subnet.
func (a addresses) next(subnet netip.Prefix, taken map[netip.Addr]string) (netip.Addr, error) {
	first := subnet.Masked().Addr().Next().Next() // skip the router's and the machine's
	last := lastOf(subnet)
	address := first
	if text, err := os.ReadFile(a.lastFile(subnet)); err == nil {
		if before, err := netip.ParseAddr(string(text)); err == nil && before.Compare(first) >= 0 {
			address = before.Next()
		}
	}
	for range len(taken) + 1 {
		if !subnet.Contains(address) || address.Compare(last) > 0 {
			address = first
		}
		if _, ok := taken[address]; !ok && address.Compare(last) <= 0 {
			return address, nil
		}
		address = address.Next()
	}
	return netip.Addr{}, errNoAddress{subnet}
}

// lastOf returns the last address of a subnet that a container may have. In IPv4 the very last address is the broadcast
// address.
func lastOf(subnet netip.Prefix) netip.Addr {
	bytes := subnet.Masked().Addr().AsSlice()
	for i := subnet.Bits(); i < len(bytes)*8; i++ {
		bytes[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	if last.Is4() {
		return last.Prev()
	}
	return last
}

// free returns errNoAddress if a subnet has no free address.
func (a addresses) free(subnets []netip.Prefix) error {
	taken, err := a.all()
	if err != nil {
		return err
	}
	for _, s := range subnets {
		if _, err := a.next(s, taken); err != nil {
			return err
		}
	}
	return nil
}

// giveUp frees addresses. An address that is already free is not an error.
func (a addresses) giveUp(all []netip.Addr) (err error) {
	for _, address := range all {
		if failed := os.Remove(a.link(address)); failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// stale returns the attachments of a network that have addresses and are not in valid. Its keys are attachments as
// text.
func (a addresses) stale(network string, valid map[string]bool) (stale []attachment, err error) {
	taken, err := a.all()
	if err != nil {
		return nil, err
	}
	for _, target := range taken {
		parts := strings.SplitN(target, "/", 3)
		if len(parts) == 3 && parts[0] == network && !valid[target] {
			valid[target] = true // list it once
			stale = append(stale, attachment{parts[0], parts[1], parts[2]})
		}
	}
	return stale, nil
}
