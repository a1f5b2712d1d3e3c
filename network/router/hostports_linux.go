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

// ServeHostPorts forwards ports of the machine to a pod. It replaces all earlier ports of the pod's address, even an
// earlier pod's. A port of another pod moves to this one. Clients keep their addresses, except the machine's own
// loopback addresses and the pod itself, so network policies also apply to traffic by host ports.
//
// From the first host port on, it uses two maps, a set and three chains in the table "coxswain" of the machine's packet
// filter, and enables forwarding. They stay when the process ends, because connections do.
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
	served, known := r.hostPorts[family]
	switch {
	case len(ports) > 0 && !served:
		served, err = true, errors.Join(r.forwardForAll(family), t.make())
	case !known:
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

// routeLoopback allows routing of packets from the machine's loopback addresses to pods. Other hosts cannot misuse it:
// the router does not forward to loopback addresses.
func (r *Router) routeLoopback() error {
	for name := range r.devices {
		device, err := r.machine.LinkByName(name)
		if err == nil {
			err = set(nil, device, map[setting]uint32{routeLocalnet: 1})
		}
		if err != nil {
			return fmt.Errorf("route loopback addresses: %w", err)
		}
	}
	return nil
}

// isConnected reports whether the pod with an address is connected. It returns true for addresses outside this router's
// subnets.
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

// hostPorts are the maps of one IP family: one by address and port, one by port alone. selves has the pods with host
// ports, each as both source and destination.
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
	newMap := func(id uint32, name string, key ...nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: table, Name: name, ID: id, IsMap: true, Concatenation: true,
			KeyType:  nftables.MustConcatSetType(key...),
			DataType: nftables.MustConcatSetType(address, nftables.TypeInetService)}
	}
	return &hostPorts{table, [2]*nftables.Set{
		newMap(1, "host-ports", address, nftables.TypeInetProto, nftables.TypeInetService),
		newMap(2, "host-ports-anywhere", nftables.TypeInetProto, nftables.TypeInetService),
	}, &nftables.Set{Table: table, Name: "host-ports-selves", ID: 3, Concatenation: true,
		KeyType: nftables.MustConcatSetType(address, address)}, like}
}

// present reports whether the maps exist. It returns false if there is no packet filter, so that pods without host
// ports do not fail.
func (h *hostPorts) present() bool {
	return nft.Once(nil, func(t *nft.Transaction) error {
		_, err := t.GetSetByName(h.table, h.selves.Name)
		return err
	}) == nil
}

// forwardForAll calls forwardFor for all subnets of a family.
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

// make creates the maps and chains.
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

// beforeNodePorts is the priority of the chains that translate destinations. It is before node ports, since a host port
// belongs to one machine.
const beforeNodePorts = -101

// addChains creates the chains: one for packets that arrive at the machine, one for packets that it sends, and one for
// packets whose source must become the machine's own address:
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

// firstWord is the first register of 32 bits, where keys begin.
const firstWord = unix.NFT_REG32_00

func (h *hostPorts) byAddress() []expr.Any {
	destination := destinationOf(h.like)
	destination.DestRegister = firstWord
	return append([]expr.Any{destination}, h.toPod(h.maps[0], firstWord+destination.Len/4)...)
}

// anywhere excludes the IPv6 loopback address, because the machine cannot send from it to other hosts.
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

// toPod loads protocol and port after the register of a key, and translates the destination by a map.
func (h *hostPorts) toPod(m *nftables.Set, register uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register},
		&expr.Payload{DestRegister: register + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: firstWord, DestRegister: firstWord, IsDestRegSet: true, SetName: m.Name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(h.table.Family), RegAddrMin: firstWord,
			RegProtoMin: firstWord + uint32(h.like.BitLen())/32, Specified: true},
	}
}

// fromLoopback masquerades packets from the machine's loopback addresses, so that pods can reply.
func fromLoopback() []expr.Any {
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	return append(in(sourceOf(loopback.Addr()), loopback), append(throughCable(expr.MetaKeyOIFNAME), &expr.Masq{})...)
}

// toItself masquerades packets from a pod to itself through the machine: a pod rejects packets from its own address on
// its device. Other pods of the machine keep their addresses; see returnByMachine.
func (h *hostPorts) toItself() []expr.Any {
	source, destination := sourceOf(h.like), destinationOf(h.like)
	source.DestRegister = firstWord
	destination.DestRegister = firstWord + source.Len/4
	return append(append(throughCable(expr.MetaKeyIIFNAME), throughCable(expr.MetaKeyOIFNAME)...), source, destination,
		&expr.Lookup{SourceRegister: firstWord, SetName: h.selves.Name}, &expr.Masq{})
}

func throughCable(direction expr.MetaKey) []expr.Any { return through(direction, machinePrefix) }

// replace updates the ports of a pod in the maps. It also removes ports of pods that no longer exist.
func (h *hostPorts) replace(pod netip.Addr, ports []HostPort, connected func(netip.Addr) bool) error {
	targets := [2]map[string]string{{}, {}}
	for _, p := range ports {
		i, key := h.key(p)
		if i >= 0 {
			targets[i][key] = string(nft.Concat(nft.Address(pod), nft.Port(p.PodPort)))
		}
	}
	return nft.Once(nil, func(t *nft.Transaction) error {
		for i, m := range h.maps {
			found, err := t.GetSetElements(m)
			if err != nil {
				return err
			}
			var removed, added []nftables.SetElement
			for _, e := range found {
				value, exists := targets[i][string(e.Key)]
				current, _ := netip.AddrFromSlice(e.Val[:min(len(e.Val), pod.BitLen()/8)])
				switch {
				case exists && value == string(e.Val):
					delete(targets[i], string(e.Key))
				case exists, current == pod, !connected(current):
					removed = append(removed, nftables.SetElement{Key: e.Key, Val: e.Val})
				}
			}
			for key, value := range targets[i] {
				added = append(added, nftables.SetElement{Key: []byte(key), Val: []byte(value)})
			}
			t.DeleteElements(m, removed)
			t.AddElements(m, added)
		}
		if err := h.replaceSelf(t, pod, len(ports) > 0, connected); err != nil {
			return err
		}
		return t.Commit()
	})
}

// replaceSelf adds a pod to the set of selves, or removes it. It also removes pods that no longer exist.
func (h *hostPorts) replaceSelf(t *nft.Transaction, pod netip.Addr, has bool, connected func(netip.Addr) bool) error {
	found, err := t.GetSetElements(h.selves)
	if err != nil {
		return err
	}
	for _, e := range found {
		other, _ := netip.AddrFromSlice(e.Key[:min(len(e.Key), pod.BitLen()/8)])
		switch {
		case other == pod && has:
			has = false // it is in the set already
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

// key returns the key of a port and the index of its map; the index is -1 if the port's address has another family than
// the pod.
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
