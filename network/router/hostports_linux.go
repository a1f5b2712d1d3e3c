package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// ServeHostPorts has ports of the machine lead to a pod, and no others than these: it replaces what the pod's address
// had before, also from an earlier pod. A port that leads to another pod goes over to this one. Clients keep their
// addresses, apart from the machine's own at loopback addresses and from the pod itself: policies of pods hold for what
// comes by host ports, too.
//
// It takes two maps, a set and three chains in the table "coxswain" of the machine's packet filter, and forwarding,
// from the first host port on. They stay when the process ends, as connections do.
func (r *Router) ServeHostPorts(pod netip.Addr, ports []HostPort) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.serveHostPorts(pod, ports); err != nil {
		return fmt.Errorf("host ports of %s: %w", pod, err)
	}
	return nil
}

func (r *Router) serveHostPorts(pod netip.Addr, ports []HostPort) (err error) {
	t := hostPortTable(pod)
	family := pod.Is4()
	served, looked := r.hostPorts[family]
	switch {
	case len(ports) > 0 && !served:
		served, err = true, errors.Join(r.forwardForAll(family), t.make())
	case !looked:
		served = t.present()
	}
	if err != nil {
		return err
	}
	if r.hostPorts[family] = served; !served {
		return nil
	}
	if len(ports) > 0 && pod.Is4() {
		if err := r.routeLoopback(); err != nil {
			return err
		}
	}
	return t.replace(pod, ports, r.isConnected)
}

// routeLoopback lets what the machine sends to its loopback addresses go to pods. Nobody else can: the router forwards
// nothing to such an address.
func (r *Router) routeLoopback() error {
	for name := range r.devices {
		device, err := r.machine.LinkByName(name)
		if err == nil {
			err = set(nil, device, map[setting]uint32{routeLocalnet: 1})
		}
		if err != nil {
			return fmt.Errorf("loopback addresses: %w", err)
		}
	}
	return nil
}

// isConnected reports whether the pod with an address is there. It is true for what is no pod of this router.
func (r *Router) isConnected(pod netip.Addr) bool {
	for _, subnets := range r.devices {
		for _, s := range subnets {
			if s.Contains(pod) {
				device, err := find(r.inside, podEnd(pod))
				return err != nil || device != nil
			}
		}
	}
	return true
}

// hostPorts are the maps of one IP family: one by address and port, one by port alone. Selves are the pods that have
// host ports, each as source and destination.
type hostPorts struct {
	table  *nftables.Table
	maps   [2]*nftables.Set
	selves *nftables.Set
	like   netip.Addr
}

func hostPortTable(like netip.Addr) *hostPorts {
	table := &nftables.Table{Name: tableName, Family: tableFamily(like)}
	address := nftables.TypeIPAddr
	if like.Is6() {
		address = nftables.TypeIP6Addr
	}
	of := func(id uint32, name string, key ...nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: table, Name: name, ID: id, IsMap: true, Concatenation: true,
			KeyType:  nftables.MustConcatSetType(key...),
			DataType: nftables.MustConcatSetType(address, nftables.TypeInetService)}
	}
	return &hostPorts{table, [2]*nftables.Set{
		of(1, "host-ports", address, nftables.TypeInetProto, nftables.TypeInetService),
		of(2, "host-ports-anywhere", nftables.TypeInetProto, nftables.TypeInetService),
	}, &nftables.Set{Table: table, Name: "host-ports-selves", ID: 3, Concatenation: true,
		KeyType: nftables.MustConcatSetType(address, address)}, like}
}

// present reports whether the maps are there. They are not where there is no packet filter, which is no fault of a pod
// that has no host ports.
func (h *hostPorts) present() bool {
	return nft.Once(nil, func(t *nft.Transaction) error {
		_, err := t.GetSetByName(h.table, h.selves.Name)
		return err
	}) == nil
}

// forwardForAll has the machine forward for the pods of all subnets of a family.
func (r *Router) forwardForAll(v4 bool) error {
	for _, subnets := range r.devices {
		for _, s := range subnets {
			if s.Addr().Is4() != v4 {
				continue
			}
			if err := forwardFor(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// make makes the maps and chains.
func (h *hostPorts) make() error {
	return nft.Once(nil, func(t *nft.Transaction) error {
		t.AddTable(h.table)
		for _, m := range h.maps {
			t.AddSet(m, nil)
		}
		t.AddSet(h.selves, nil)
		h.addChains(t)
		return t.Commit()
	})
}

// beforeNodePorts is the priority of the chains that translate destinations: a host port is one machine's, and precedes
// the node ports.
const beforeNodePorts = -101

// addChains makes the chains: one for packets that come to the machine, one for those that it sends, and one for those
// whose source must become the machine's own address:
//
//	dnat ip to ip daddr . meta l4proto . th dport map @host-ports
//	ip daddr != ::1 fib daddr type local dnat ip to meta l4proto . th dport map @host-ports-anywhere
//
//	ip saddr 127.0.0.0/8 oifname "cox*" masquerade
//	iifname "cox*" oifname "cox*" ip saddr . ip daddr @host-ports-selves masquerade
func (h *hostPorts) addChains(t *nft.Transaction) {
	add := func(name string, hook *nftables.ChainHook, priority nftables.ChainPriority, rules ...[]expr.Any) {
		chain := t.AddChain(&nftables.Chain{Name: name, Table: h.table, Type: nftables.ChainTypeNAT, Hooknum: hook,
			Priority: nftables.ChainPriorityRef(priority)})
		t.FlushChain(chain)
		for _, r := range rules {
			t.AddRule(&nftables.Rule{Table: h.table, Chain: chain, Exprs: r})
		}
	}
	in, out := h.byAddress(), h.anywhere()
	add("host-ports", nftables.ChainHookPrerouting, beforeNodePorts, in, out)
	add("host-ports-output", nftables.ChainHookOutput, beforeNodePorts, in, out)
	sources := [][]expr.Any{h.toItself()}
	if h.like.Is4() {
		sources = append(sources, fromLoopback())
	}
	add("host-ports-sources", nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource, sources...)
}

// Registers of 32 bits: a key begins in the first.
const firstWord = unix.NFT_REG32_00

func (h *hostPorts) byAddress() []expr.Any {
	destination := destinationOf(h.like)
	destination.DestRegister = firstWord
	return append([]expr.Any{destination}, h.toPod(h.maps[0], firstWord+destination.Len/4)...)
}

// anywhere leaves the loopback address of IPv6 to the machine, which cannot send from it to anyone else.
func (h *hostPorts) anywhere() (all []expr.Any) {
	if h.like.Is6() {
		all = notIn(destinationOf(h.like), netip.MustParsePrefix("::1/128"))
	}
	return append(append(all,
		&expr.Fib{Register: unix.NFT_REG_1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1,
			Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)}),
		h.toPod(h.maps[1], firstWord)...)
}

// toPod completes the key, at a register, with protocol and port, and translates the destination to what a map has.
func (h *hostPorts) toPod(m *nftables.Set, at uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: at},
		&expr.Payload{DestRegister: at + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: firstWord, DestRegister: firstWord, IsDestRegSet: true, SetName: m.Name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(h.table.Family), RegAddrMin: firstWord,
			RegProtoMin: firstWord + uint32(h.like.BitLen())/32, Specified: true},
	}
}

// fromLoopback gives an address that a pod can answer to what the machine sends from a loopback address.
func fromLoopback() []expr.Any {
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	return append(in(sourceOf(loopback.Addr()), loopback), append(throughCable(expr.MetaKeyOIFNAME), &expr.Masq{})...)
}

// toItself has a pod answer itself by the machine: it takes nothing from its own address by its device. Other pods of
// the machine keep their addresses; see returnByMachine.
func (h *hostPorts) toItself() []expr.Any {
	source, destination := sourceOf(h.like), destinationOf(h.like)
	source.DestRegister = firstWord
	destination.DestRegister = firstWord + source.Len/4
	return append(append(throughCable(expr.MetaKeyIIFNAME), throughCable(expr.MetaKeyOIFNAME)...), source, destination,
		&expr.Lookup{SourceRegister: firstWord, SetName: h.selves.Name}, &expr.Masq{})
}

func throughCable(direction expr.MetaKey) []expr.Any { return through(direction, machinePrefix) }

// replace changes the maps to what a pod is to have. Ports that lead to pods that have gone are removed as well.
func (h *hostPorts) replace(pod netip.Addr, ports []HostPort, connected func(netip.Addr) bool) error {
	wanted := [2]map[string]string{{}, {}}
	for _, p := range ports {
		i, key := h.key(p)
		if i >= 0 {
			wanted[i][key] = string(nft.Concat(nft.Address(pod), nft.Port(p.PodPort)))
		}
	}
	return nft.Once(nil, func(t *nft.Transaction) error {
		for i, m := range h.maps {
			found, err := t.GetSetElements(m)
			if err != nil {
				return err
			}
			var gone, come []nftables.SetElement
			for _, e := range found {
				value, here := wanted[i][string(e.Key)]
				to, _ := netip.AddrFromSlice(e.Val[:min(len(e.Val), pod.BitLen()/8)])
				switch {
				case here && value == string(e.Val):
					delete(wanted[i], string(e.Key))
				case here, to == pod, !connected(to):
					gone = append(gone, nftables.SetElement{Key: e.Key, Val: e.Val})
				}
			}
			for key, value := range wanted[i] {
				come = append(come, nftables.SetElement{Key: []byte(key), Val: []byte(value)})
			}
			t.DeleteElements(m, gone)
			t.AddElements(m, come)
		}
		if err := h.replaceSelf(t, pod, len(ports) > 0, connected); err != nil {
			return err
		}
		return t.Commit()
	})
}

// replaceSelf has the set of selves have a pod, or not, and no pods that have gone.
func (h *hostPorts) replaceSelf(t *nft.Transaction, pod netip.Addr, has bool, connected func(netip.Addr) bool) error {
	found, err := t.GetSetElements(h.selves)
	if err != nil {
		return err
	}
	for _, e := range found {
		other, _ := netip.AddrFromSlice(e.Key[:min(len(e.Key), pod.BitLen()/8)])
		switch {
		case other == pod && has:
			has = false // it is there
		case other == pod, !connected(other):
			t.DeleteElements(h.selves, []nftables.SetElement{{Key: e.Key}})
		}
	}
	if has {
		self := nft.Concat(nft.Address(pod), nft.Address(pod))
		t.AddElements(h.selves, []nftables.SetElement{{Key: self}})
	}
	return nil
}

// key is that of a port, and the index of its map; -1 where the port is of another IP family than the pod.
func (h *hostPorts) key(p HostPort) (index int, key string) {
	port := nft.Concat(nft.Protocol(p.Protocol), nft.Port(p.Port))
	switch {
	case !p.Address.IsValid():
		return 1, string(port)
	case p.Address.Is4() != h.like.Is4():
		return -1, ""
	case p.Address.IsUnspecified():
		return 1, string(port)
	}
	return 0, string(append(nft.Concat(nft.Address(p.Address)), port...))
}
