package nodewrites

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// NodeStatus lists the fields of a Node's status.
var NodeStatus = []Row[*corev1.Node]{
	{"capacity", "allocatable where that is missing", "1000 resources, 2^60 of each, 10^9 CPUs",
		func(_ context.Context, _ Cluster, now, old *corev1.Node) error {
			return refuseCapacity(now.Status.Capacity, old.Status.Capacity)
		}},
	{"allocatable", "scheduler, EndpointSlice hints, the node's agent", "as capacity: pods come to the node by it",
		func(_ context.Context, _ Cluster, now, old *corev1.Node) error {
			return refuseCapacity(now.Status.Allocatable, old.Status.Allocatable)
		}},
	{"phase", "nothing", "anything", nil},
	{"conditions", "node-lifecycle (taints), pods' conditions by it; cluster-dns (an endpoint of kube-dns at the " +
		"first address of the podCIDR)", "200, one of each type",
		func(_ context.Context, _ Cluster, now, old *corev1.Node) error {
			if equality.Semantic.DeepEqual(now.Status.Conditions, old.Status.Conditions) {
				return nil
			}
			return refuseConditions(now.Status.Conditions,
				func(c *corev1.NodeCondition) string { return string(c.Type) })
		}},
	{"addresses", "csrapproving; the API server's requests to the node, which never end at itself; the pods' " +
		"network (node ports, routes, policies)",
		"100; as IPs no address of Services, of no machine, or of a ready pod of another node", refuseNodeAddresses},
	{"daemonEndpoints", "the API server's requests to the node, which never end at itself", "a port",
		func(_ context.Context, _ Cluster, now, _ *corev1.Node) error {
			if port := now.Status.DaemonEndpoints.KubeletEndpoint.Port; port < 0 || port > 65535 {
				return errors.New("must be between 0 and 65535")
			}
			return nil
		}},
	{"nodeInfo", "the node-local provisioner, about the node's own folders", "anything", nil},
	{"images", "scheduler (ImageLocality): pods come to the node by it", "5000",
		func(_ context.Context, _ Cluster, now, _ *corev1.Node) error {
			return bounded(len(now.Status.Images), MaxImages)
		}},
	{"volumesInUse", "attach-detach, which does not detach these from the node", "5000",
		func(_ context.Context, _ Cluster, now, _ *corev1.Node) error {
			return bounded(len(now.Status.VolumesInUse), MaxVolumes)
		}},
	{"volumesAttached", "kubelets", "what attach-detach wrote",
		func(_ context.Context, _ Cluster, now, old *corev1.Node) error {
			if !equality.Semantic.DeepEqual(now.Status.VolumesAttached, old.Status.VolumesAttached) {
				return errImmutable
			}
			return nil
		}},
	{"config", "nothing", "what it was, or nothing",
		func(_ context.Context, _ Cluster, now, old *corev1.Node) error {
			if now.Status.Config != nil && !equality.Semantic.DeepEqual(now.Status.Config, old.Status.Config) {
				return errImmutable
			}
			return nil
		}},
	{"runtimeHandlers", "nothing", "1000",
		func(_ context.Context, _ Cluster, now, _ *corev1.Node) error {
			return bounded(len(now.Status.RuntimeHandlers), MaxResources)
		}},
	{"features", "nothing", "anything", nil},
	{"declaredFeatures", "the API server's requests to the node (WebSockets)", "1000",
		func(_ context.Context, _ Cluster, now, _ *corev1.Node) error {
			return bounded(len(now.Status.DeclaredFeatures), MaxResources)
		}},
}

// The largest amounts. Sums of the amounts of many Nodes fit an int64, also in thousandths of CPUs.
var (
	mostOfResource = resource.NewQuantity(1<<60, resource.BinarySI)
	mostCPU        = resource.NewQuantity(1e9, resource.DecimalSI)
)

func refuseCapacity(now, old corev1.ResourceList) error {
	if err := bounded(len(now), MaxResources); err != nil {
		return err
	}
	for name, q := range now {
		limit := mostOfResource
		if name == corev1.ResourceCPU {
			limit = mostCPU
		}
		if before, ok := old[name]; ok && q.Cmp(before) == 0 {
			continue
		}
		if q.Cmp(*limit) > 0 {
			return fmt.Errorf("%s: must be at most %s", name, limit)
		}
	}
	return nil
}

// refuseConditions checks that a list has at most MaxConditions elements, and one of each type.
func refuseConditions[C any](conditions []C, kind func(*C) string) error {
	if err := bounded(len(conditions), MaxConditions); err != nil {
		return err
	}
	seen := make(map[string]bool, len(conditions))
	for i := range conditions {
		t := kind(&conditions[i])
		if seen[t] {
			return fmt.Errorf("there is more than one %q", t)
		}
		seen[t] = true
	}
	return nil
}

func refuseNodeAddresses(ctx context.Context, c Cluster, now, old *corev1.Node) error {
	if err := bounded(len(now.Status.Addresses), MaxAddresses); err != nil {
		return err
	}
	for _, n := range now.Status.Addresses {
		if slices.Contains(old.Status.Addresses, n) {
			continue
		}
		if len(n.Address) > 253 {
			return errors.New("must be at most 253 characters")
		}
		a, err := parseClaimed(n.Address)
		if err != nil {
			if n.Type == corev1.NodeInternalIP || n.Type == corev1.NodeExternalIP {
				return err
			}
			continue
		}
		if err := refuseRange(ctx, c, a); err != nil {
			return err
		}
		if a.IsLoopback() {
			continue // an agent on the machine of the API server
		}
		if err := refusePodOfOthers(ctx, c, now.Name, a); err != nil {
			return err
		}
	}
	return nil
}
