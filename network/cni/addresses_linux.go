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

// attachment is a container's device in a network. None of the texts has a slash: the specification forbids it, and
// package skel rejects it.
type attachment struct{ network, container, device string }

func (a attachment) String() string { return a.network + "/" + a.container + "/" + a.device }

// addresses are those that containers have. Each is a symbolic link, which exists with its content or not at all,
// however a process ends: its name is the address, its target the attachment.
type addresses struct{ folder }

// errNoAddress says that a subnet is used up.
type errNoAddress struct{ subnet netip.Prefix }

func (e errNoAddress) Error() string { return fmt.Sprintf("no address of %s is free", e.subnet) }

// lock makes this process the only one that takes or gives up addresses.
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
		return nil, fmt.Errorf("lock of addresses: %w", err)
	}
	return func() { _ = file.Close() }, nil
}

func (a addresses) link(address netip.Addr) string { return a.path("addresses/" + address.String()) }

// all are the addresses that are taken, and by whom.
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
			continue // it is no address of ours
		}
		of, err := os.Readlink(a.link(address))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is free now
		}
		if err != nil {
			return nil, err
		}
		taken[address] = of
	}
	return taken, nil
}

// of are the addresses of an attachment: of IPv4 before IPv6, so that the first one never depends on chance.
func (a addresses) of(who attachment) (own []netip.Addr, err error) {
	taken, err := a.all()
	for address, of := range taken {
		if of == who.String() {
			own = append(own, address)
		}
	}
	slices.SortFunc(own, netip.Addr.Compare)
	return own, err
}

// take gives an attachment an address of each subnet, or none. An address that it has of a subnet, as an attempt that
// was interrupted leaves it, is the one. Fresh are those that it did not have.
func (a addresses) take(who attachment, subnets []netip.Prefix) (own, fresh []netip.Addr, err error) {
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
		address, ok := has(taken, who, subnet)
		if !ok {
			if address, err = a.next(subnet, taken); err != nil {
				return nil, fresh, err
			}
			if err = os.Symlink(who.String(), a.link(address)); err != nil {
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

func has(taken map[netip.Addr]string, who attachment, subnet netip.Prefix) (netip.Addr, bool) {
	for address, of := range taken {
		if of == who.String() && subnet.Contains(address) {
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

// next finds the free address after the one that was taken last: an address rests as long as possible before it is used
// again. Each address that it looks at in vain is one that is taken, so that subnets may be of any size.
func (a addresses) next(subnet netip.Prefix, taken map[netip.Addr]string) (netip.Addr, error) {
	first := subnet.Masked().Addr().Next().Next() // after the router's and the machine's
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

// lastOf is the last address of a subnet that a container may have. In IPv4 the very last is for broadcasts.
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

// free returns errNoAddress if an attachment could not be given an address of each subnet.
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

// giveUp frees addresses, which need not be taken.
func (a addresses) giveUp(all []netip.Addr) (err error) {
	for _, address := range all {
		if failed := os.Remove(a.link(address)); failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// stale are the attachments of a network that have addresses and are not among those that are valid, by their texts.
func (a addresses) stale(network string, valid map[string]bool) (stale []attachment, err error) {
	taken, err := a.all()
	if err != nil {
		return nil, err
	}
	for _, of := range taken {
		parts := strings.SplitN(of, "/", 3)
		if len(parts) == 3 && parts[0] == network && !valid[of] {
			valid[of] = true // do not name it twice
			stale = append(stale, attachment{parts[0], parts[1], parts[2]})
		}
	}
	return stale, nil
}
