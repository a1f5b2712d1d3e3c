package ingress

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// clearTimeout limits how long the shutdown waits for the removal of addresses.
const clearTimeout = 10 * time.Second

// addresses returns the addresses for the status of Ingresses; nil leaves the status unchanged. Every process of a
// controller computes the same addresses, so no leader election is necessary.
func (c *controller) addresses() []networkingv1.IngressLoadBalancerIngress {
	list := slices.Clone(c.options.PublishAddresses)
	if key := c.options.PublishService; key.Name != "" {
		service, err := c.published.Lister().Services(key.Namespace).Get(key.Name)
		if err != nil {
			return nil
		}
		list = append(list, serviceAddresses(service)...)
	}
	slices.Sort(list)
	var all []networkingv1.IngressLoadBalancerIngress
	for _, a := range slices.Compact(list) {
		if _, err := netip.ParseAddr(a); err == nil {
			all = append(all, networkingv1.IngressLoadBalancerIngress{IP: a})
		} else {
			all = append(all, networkingv1.IngressLoadBalancerIngress{Hostname: a})
		}
	}
	return all
}

// serviceAddresses returns the addresses of a Service with the widest reach.
func serviceAddresses(s *corev1.Service) []string {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return []string{s.Spec.ExternalName}
	}
	var all []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.IP != "" {
			all = append(all, i.IP)
		} else if i.Hostname != "" {
			all = append(all, i.Hostname)
		}
	}
	if all = append(all, s.Spec.ExternalIPs...); len(all) > 0 {
		return all
	}
	none := func(ip string) bool { return ip == corev1.ClusterIPNone }
	return slices.DeleteFunc(slices.Clone(s.Spec.ClusterIPs), none)
}

// publish writes the addresses to an Ingress's status, if they changed.
func (c *controller) publish(ctx context.Context, key types.NamespacedName) {
	ingress, err := c.ingresses.Lister().Ingresses(key.Namespace).Get(key.Name)
	if err != nil || !c.classes.serves(ingress) {
		return
	}
	want := c.addresses()
	if want == nil || equality.Semantic.DeepEqual(want, ingress.Status.LoadBalancer.Ingress) {
		c.statuses.Forget(key)
		return
	}
	if err := c.writeStatus(ctx, key, want); err != nil && ctx.Err() == nil {
		c.options.Log.Warn("failed to write the status of an Ingress", "ingress", key, "err", err)
		c.statuses.Retry(key)
		return
	}
	c.statuses.Forget(key)
}

func (c *controller) writeStatus(ctx context.Context, key types.NamespacedName,
	addresses []networkingv1.IngressLoadBalancerIngress) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"loadBalancer": map[string]any{"ingress": addresses}}})
	if err != nil {
		return err
	}
	_, err = c.client.NetworkingV1().Ingresses(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: "coxswain-ingress"}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// clearStatus removes the addresses from all Ingresses.
func (c *controller) clearStatus(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := c.options.Clock.AfterFunc(clearTimeout, cancel)
	defer timer.Stop()
	for _, ingress := range c.served() {
		if len(ingress.Status.LoadBalancer.Ingress) == 0 {
			continue
		}
		key := types.NamespacedName{Namespace: ingress.Namespace, Name: ingress.Name}
		if err := c.writeStatus(ctx, key, nil); err != nil {
			c.options.Log.Warn("failed to clear the status of an Ingress", "ingress", key, "err", err)
		}
	}
}
