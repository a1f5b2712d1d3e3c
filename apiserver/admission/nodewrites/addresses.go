package nodewrites

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// parseClaimed parses an address that a node reports, into the form that is compared.
func parseClaimed(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return a, fmt.Errorf("%q is not an IP address", text)
	}
	return a.Unmap(), nil
}

// refuseRange rejects addresses that no machine and no pod can have: addresses of Services, and addresses with a
// meaning that depends on the machine. The caller decides about loopback addresses.
func refuseRange(ctx context.Context, c Cluster, a netip.Addr) error {
	switch {
	case a.IsUnspecified(), a.IsMulticast(), a.IsLinkLocalUnicast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%s is the address of no node and no pod", a)
	}
	ranges, err := c.ServiceCIDRs(ctx)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if overlapsAny(r.Spec.CIDRs, single(a)) {
			return fmt.Errorf("%s is an address of Services", a)
		}
	}
	return nil
}

// refusePodOfOthers rejects the address of a ready pod on another node. The address of a pod that is not ready may
// have been given to another one, since its node may no longer exist. Pods are searched for the address in the form
// that agents write, independently of the claim's spelling.
func refusePodOfOthers(ctx context.Context, c Cluster, node string, a netip.Addr) error {
	found, err := c.PodsMentioning(ctx, `"`+a.String()+`"`)
	if err != nil {
		return err
	}
	for _, pod := range found {
		if pod.Spec.NodeName == node || pod.Spec.HostNetwork || !isReady(pod) {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			if other, err := parseClaimed(ip.IP); err == nil && other == a {
				return fmt.Errorf("%s is the address of a pod on another node", a)
			}
		}
	}
	return nil
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// refusePodAddress rejects an address of a pod or of its host that may belong to others. The node may use its own
// range and its own addresses.
func refusePodAddress(ctx context.Context, c Cluster, node, text string) error {
	a, err := parseClaimed(text)
	if err != nil {
		return err
	}
	if err := refuseRange(ctx, c, a); err != nil {
		return err
	}
	own, err := c.Node(ctx, node)
	if err != nil {
		return err
	}
	if own == nil {
		own = &corev1.Node{}
	}
	isOwn := func(n corev1.NodeAddress) bool {
		other, err := parseClaimed(n.Address)
		return err == nil && other == a
	}
	if overlapsAny(own.Spec.PodCIDRs, single(a)) || slices.ContainsFunc(own.Status.Addresses, isOwn) {
		return nil
	}
	if a.IsLoopback() {
		return fmt.Errorf("%s is a loopback address", a)
	}
	return refusePodOfOthers(ctx, c, node, a)
}

// refusePodCIDRs keeps a Node from taking the addresses of other Nodes' pods: the pods' network routes a range to
// the Node that has it.
func refusePodCIDRs(ctx context.Context, c Cluster, now, old *corev1.Node) error {
	if slices.Equal(now.Spec.PodCIDRs, old.Spec.PodCIDRs) {
		return nil
	}
	others, err := c.Nodes(ctx)
	if err != nil {
		return err
	}
	ranges, err := c.ServiceCIDRs(ctx)
	if err != nil {
		return err
	}
	for _, text := range now.Spec.PodCIDRs {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			continue // validation rejects it
		}
		for _, r := range ranges {
			if overlapsAny(r.Spec.CIDRs, cidr) {
				return fmt.Errorf("spec.podCIDRs: %s overlaps with the range of Services", cidr)
			}
		}
		for _, n := range others {
			if n.Name != now.Name && overlapsAny(n.Spec.PodCIDRs, cidr) {
				return fmt.Errorf("spec.podCIDRs: %s overlaps with the range of another Node", cidr)
			}
		}
	}
	return nil
}

// single returns the range of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func overlapsAny(cidrs []string, p netip.Prefix) bool {
	return slices.ContainsFunc(cidrs, func(text string) bool {
		cidr, err := netip.ParsePrefix(text)
		return err == nil && cidr.Overlaps(p)
	})
}
