// Package servicecidr sets the condition Ready of each ServiceCIDR. Its finalizer keeps a deleted ServiceCIDR while it
// contains an IPAddress that no other ServiceCIDR contains (KEP-1880).
// https://kubernetes.io/docs/reference/networking/virtual-ips/#ip-address-objects
package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	networkinglisters "k8s.io/client-go/listers/networking/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const finalizer = "networking.k8s.io/service-cidr-finalizer"

// The messages of the condition Ready, as in Kubernetes.
const (
	isReady = "Kubernetes Service CIDR is ready"
	inUse   = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
)

type reconciler struct {
	env       *controller.Env
	ranges    networkinglisters.ServiceCIDRLister
	addresses networkinglisters.IPAddressLister
}

// New returns the controller. Its keys are ServiceCIDRs.
func New(env *controller.Env) (*controller.Controller, error) {
	ranges := env.Informers.Networking().V1().ServiceCIDRs()
	addresses := env.Informers.Networking().V1().IPAddresses()
	r := &reconciler{env: env, ranges: ranges.Lister(), addresses: addresses.Lister()}
	c := controller.New(env, "service-cidr", r.reconcile)

	// A new range may release another one, and so may a deleted address.
	enqueueMatching := func(has func(netip.Prefix) bool) {
		all, err := r.ranges.List(labels.Everything())
		if err != nil {
			return
		}
		for _, other := range all {
			if slices.ContainsFunc(prefixes(other), has) {
				c.EnqueueObject(other)
			}
		}
	}
	overlapping := func(cidr *networkingv1.ServiceCIDR) {
		c.EnqueueObject(cidr)
		enqueueMatching(func(p netip.Prefix) bool { return slices.ContainsFunc(prefixes(cidr), p.Overlaps) })
	}
	controller.Watch(c, ranges.Informer(), controller.Handler[*networkingv1.ServiceCIDR]{
		Add:    overlapping,
		Update: func(_, cidr *networkingv1.ServiceCIDR) { overlapping(cidr) },
		Delete: overlapping,
	})
	controller.Watch(c, addresses.Informer(), controller.Handler[*networkingv1.IPAddress]{
		Delete: func(address *networkingv1.IPAddress) {
			if ip, err := netip.ParseAddr(address.Name); err == nil {
				enqueueMatching(func(p netip.Prefix) bool { return p.Contains(ip) })
			}
		},
	})
	return c, nil
}

func (r *reconciler) reconcile(ctx context.Context, name string) error {
	cidr, err := r.ranges.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	cidr = cidr.DeepCopy()
	if cidr.DeletionTimestamp == nil {
		if !slices.Contains(cidr.Finalizers, finalizer) {
			cidr.Finalizers = append(cidr.Finalizers, finalizer)
			if cidr, err = r.update(ctx, cidr); err != nil {
				return err
			}
		}
		return r.setReady(ctx, cidr, metav1.Condition{Status: metav1.ConditionTrue, Message: isReady})
	}
	if !slices.Contains(cidr.Finalizers, finalizer) {
		return nil
	}
	addresses, err := r.addresses.List(labels.Everything())
	if err != nil {
		return err
	}
	used, err := r.needed(cidr, addresses)
	if err == nil && !used {
		used, err = r.neededNow(ctx, cidr)
	}
	if err != nil {
		return err
	}
	if used {
		return r.setReady(ctx, cidr, metav1.Condition{Status: metav1.ConditionFalse,
			Reason: networkingv1.ServiceCIDRReasonTerminating, Message: inUse})
	}
	cidr.Finalizers = slices.DeleteFunc(cidr.Finalizers, func(f string) bool { return f == finalizer })
	_, err = r.update(ctx, cidr)
	return err
}

// needed reports whether the range contains an address that no other remaining range contains. A range without our
// finalizer does not count as remaining, because it may be deleted at any time.
func (r *reconciler) needed(cidr *networkingv1.ServiceCIDR, addresses []*networkingv1.IPAddress) (bool, error) {
	all, err := r.ranges.List(labels.Everything())
	if err != nil {
		return false, err
	}
	has := func(cidr *networkingv1.ServiceCIDR, ip netip.Addr) bool {
		return slices.ContainsFunc(prefixes(cidr), func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	for _, address := range addresses {
		ip, err := netip.ParseAddr(address.Name)
		if err != nil || !has(cidr, ip) {
			continue
		}
		if !slices.ContainsFunc(all, func(other *networkingv1.ServiceCIDR) bool {
			return other.Name != cidr.Name && other.DeletionTimestamp == nil &&
				slices.Contains(other.Finalizers, finalizer) && has(other, ip)
		}) {
			return true, nil
		}
	}
	return false, nil
}

// neededNow does the same with addresses from the API server: the cache may not have an address yet that was allocated
// before the range was deleted.
func (r *reconciler) neededNow(ctx context.Context, cidr *networkingv1.ServiceCIDR) (bool, error) {
	list, err := r.env.Client().NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list IPAddresses in ServiceCIDR %s: %w", cidr.Name, err)
	}
	live := make([]*networkingv1.IPAddress, len(list.Items))
	for i := range list.Items {
		live[i] = &list.Items[i]
	}
	return r.needed(cidr, live)
}

// update writes the finalizers.
func (r *reconciler) update(ctx context.Context, cidr *networkingv1.ServiceCIDR) (*networkingv1.ServiceCIDR, error) {
	updated, err := r.env.Client().NetworkingV1().ServiceCIDRs().Update(ctx, cidr, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update finalizers of ServiceCIDR %s: %w", cidr.Name, err)
	}
	return updated, nil
}

// setReady writes the condition Ready if it changes.
func (r *reconciler) setReady(ctx context.Context, cidr *networkingv1.ServiceCIDR, ready metav1.Condition) error {
	ready.Type = networkingv1.ServiceCIDRConditionReady
	old := apimeta.FindStatusCondition(cidr.Status.Conditions, ready.Type)
	if old != nil && old.Status == ready.Status && old.Reason == ready.Reason && old.Message == ready.Message {
		return nil
	}
	if old == nil || old.Status != ready.Status {
		ready.LastTransitionTime = metav1.NewTime(r.env.Clock.Now())
	}
	apimeta.SetStatusCondition(&cidr.Status.Conditions, ready)
	if _, err := r.env.Client().NetworkingV1().ServiceCIDRs().UpdateStatus(ctx, cidr,
		metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update status of ServiceCIDR %s: %w", cidr.Name, err)
	}
	return nil
}

// prefixes returns the valid CIDRs of an object.
func prefixes(cidr *networkingv1.ServiceCIDR) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range cidr.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			list = append(list, p)
		}
	}
	return list
}
