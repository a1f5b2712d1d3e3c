package router

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// Ports is a range of ports. It includes both ends.
type Ports struct{ First, Last uint16 }

// ServeNodePorts redirects connections to a range of ports at the machine's own addresses to the router's own address,
// where a proxy serves node ports and health check node ports. Clients keep their addresses. Connections to loopback
// addresses stay on the machine. It creates two chains in the table "coxswain" of the machine's packet filter, and
// enables forwarding. Both stay when the process ends, unless Close finds no pods.
func (r *Router) ServeNodePorts(p Ports) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodePorts = &p
	return r.serveNodePorts()
}

// NodePort is a port of a transport protocol.
type NodePort struct {
	Protocol uint8 // by its number in IP
	Port     uint16
}

// ReachNodePorts redirects the machine's own connections to node ports at its own addresses to the router's own
// address. Connections from elsewhere, and to loopback addresses, stay on the machine. Earlier ports that are not in
// ports are no longer redirected. It creates a chain in the table "coxswain" of the machine's packet filter, which
// stays when the process ends, unless Close finds no pods. Without ports the chain is empty.
func (r *Router) ReachNodePorts(ports []NodePort) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(ports) == 0 && len(r.reached) == 0 {
		return nil
	}
	r.reached = ports
	return r.reachNodePorts()
}

func (r *Router) reachNodePorts() error {
	if len(r.reached) == 0 {
		return nil
	}
	return r.atFirstSubnets(func(subnet netip.Prefix) error { return reachNodePortsAt(r.reached, subnet) })
}

// reachNodePortsAt replaces the rules of one chain.
func reachNodePortsAt(ports []NodePort, subnet netip.Prefix) error {
	own := subnet.Addr()
	return nft.Once(nil, func(t *nft.Transaction) error {
		table := t.AddTable(&nftables.Table{Name: tableName, Family: tableFamily(own)})
		chain := t.AddChain(&nftables.Chain{Name: nodePortsPrefix + "machine-" + chainOf(subnet), Table: table,
			Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
		t.FlushChain(chain)
		for _, p := range ports {
			t.AddRule(&nftables.Rule{Table: table, Chain: chain,
				Exprs: toNodePort(Ports{p.Port, p.Port}, p.Protocol, own)})
		}
		return t.Commit()
	})
}

// serveNodePorts redirects to the router's address in the first subnet of each family.
func (r *Router) serveNodePorts() error {
	if r.nodePorts == nil {
		return nil
	}
	return r.atFirstSubnets(func(subnet netip.Prefix) error { return serveNodePortsAt(*r.nodePorts, subnet) })
}

// atFirstSubnets calls serve for the first subnet of each family.
func (r *Router) atFirstSubnets(serve func(netip.Prefix) error) error {
	done := map[bool]bool{}
	for _, device := range slices.Sorted(maps.Keys(r.devices)) {
		for _, s := range r.devices[device] {
			if done[s.Addr().Is4()] {
				continue
			}
			done[s.Addr().Is4()] = true
			if err := serve(s); err != nil {
				return fmt.Errorf("serve node ports: %w", err)
			}
		}
	}
	return nil
}

// nodePortsPrefix begins the names of the chains of node ports. Each subnet has its own, so that several agents on a
// machine do not interfere: the latest chain takes precedence, and leaves the others' ports alone.
const nodePortsPrefix = "node-ports-"

// serveNodePortsAt creates one chain for packets that arrive at the machine and one for packets that it sends itself:
//
//	ip daddr != 127.0.0.0/8 fib daddr type local tcp dport 30000-32767 dnat to 10.244.0.1
func serveNodePortsAt(ports Ports, subnet netip.Prefix) error {
	if err := forwardFor(subnet); err != nil {
		return err
	}
	own := subnet.Addr()
	return nft.Once(nil, func(t *nft.Transaction) error {
		table := t.AddTable(&nftables.Table{Name: tableName, Family: tableFamily(own)})
		for _, hook := range []struct {
			name string
			at   *nftables.ChainHook
		}{{nodePortsPrefix + chainOf(subnet), nftables.ChainHookPrerouting},
			{nodePortsPrefix + "output-" + chainOf(subnet), nftables.ChainHookOutput}} {
			chain := t.AddChain(&nftables.Chain{Name: hook.name, Table: table, Type: nftables.ChainTypeNAT,
				Hooknum: hook.at, Priority: nftables.ChainPriorityNATDest})
			t.FlushChain(chain)
			for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
				t.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: toNodePort(ports, protocol, own)})
			}
		}
		return t.Commit()
	})
}

// toNodePort returns the expressions of a rule.
func toNodePort(ports Ports, protocol byte, own netip.Addr) []expr.Any {
	loopback, destination := netip.MustParsePrefix("127.0.0.0/8"), destinationOf(own)
	if own.Is6() {
		loopback = netip.MustParsePrefix("::1/128")
	}
	return append(notIn(destination, loopback),
		&expr.Fib{Register: unix.NFT_REG_1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1,
			Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: nft.Protocol(protocol)},
		&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Range{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, FromData: nft.Port(ports.First),
			ToData: nft.Port(ports.Last)},
		&expr.Immediate{Register: unix.NFT_REG_1, Data: own.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(tableFamily(own)), RegAddrMin: unix.NFT_REG_1},
	)
}
