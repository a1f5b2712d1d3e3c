// Package servicelb assigns addresses from a pool to Services of type LoadBalancer.
//
// The pool (--service-lb-pool) takes the place of a cloud provider. The operator must route its addresses to the nodes.
// The Services' own status records the addresses in use, so that no address is lost or assigned twice after a restart.
// A Service keeps its address as long as it has the type and the address is in the pool. A finalizer keeps a deleted
// Service until its address is released. Services with a loadBalancerClass other than Class are ignored.
// https://kubernetes.io/docs/concepts/services-networking/service/#loadbalancer
package servicelb

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const (
	// Class is the loadBalancerClass that selects the pool explicitly.
	Class = "coxswain.dev/pool"

	finalizer = "service.kubernetes.io/load-balancer-cleanup"
)

type balancer struct {
	*controller.Controller
	env      *controller.Env
	pool     Pool
	services corelisters.ServiceLister
	recorder record.EventRecorder
	// assigned maps addresses to the uids of their Services, because the cache may not show the assignment yet. Only
	// the one worker accesses assigned and pending.
	assigned map[netip.Addr]types.UID
	// pending has the keys of the Services that found no free address.
	pending map[string]bool
}

// New returns the controller. Its keys are Services. Without a pool it does nothing.
func New(env *controller.Env) (*controller.Controller, error) {
	pool, err := ParsePool(env.Settings.Service.LoadBalancerPool)
	if err != nil {
		return nil, fmt.Errorf("--service-lb-pool: %w", err)
	}
	services := env.Informers.Core().V1().Services()
	b := &balancer{
		env: env, pool: pool, services: services.Lister(), recorder: env.Recorder("service-controller"),
		assigned: map[netip.Addr]types.UID{}, pending: map[string]bool{},
	}
	b.Controller = controller.New(env, "service", b.reconcile)
	if len(pool) == 0 {
		return b.Controller, nil
	}
	controller.Watch(b.Controller, services.Informer(), controller.Handler[*corev1.Service]{
		Add: func(s *corev1.Service) {
			if eligible(s) || marked(s) {
				b.EnqueueObject(s)
			}
		},
		Update: func(old, s *corev1.Service) {
			if eligible(old) || eligible(s) || marked(s) {
				b.EnqueueObject(s)
			}
		},
		Delete: func(s *corev1.Service) { b.EnqueueObject(s) },
	})
	return b.Controller, nil
}

// eligible reports whether the Service gets an address from the pool.
func eligible(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.DeletionTimestamp == nil && hasOurClass(s)
}

// hasOurClass reports whether the Service has no loadBalancerClass, or Class.
func hasOurClass(s *corev1.Service) bool {
	return s.Spec.LoadBalancerClass == nil || *s.Spec.LoadBalancerClass == Class
}

// marked reports whether the Service has the finalizer, and so may have an address.
func marked(s *corev1.Service) bool { return slices.Contains(s.Finalizers, finalizer) }

func (b *balancer) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // the key has another format
	}
	s, err := b.services.Services(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		delete(b.pending, key)
		b.enqueuePending()
		return nil
	case err != nil:
		return err
	case eligible(s):
		return b.ensure(ctx, key, s)
	case marked(s) && (hasOurClass(s) || s.Spec.Type != corev1.ServiceTypeLoadBalancer):
		return b.cleanUp(ctx, key, s)
	}
	return nil
}

// ensure assigns an address of each of its families to the Service and writes them to its status.
func (b *balancer) ensure(ctx context.Context, key string, s *corev1.Service) error {
	addresses, err := b.choose(s)
	if err != nil {
		b.pending[key] = true
		b.recorder.Eventf(s, corev1.EventTypeWarning, "SyncLoadBalancerFailed",
			"Error syncing load balancer: failed to ensure load balancer: %v", err)
		if errors.Is(err, errNone) {
			return nil // an address that becomes free enqueues it again
		}
		return err
	}
	delete(b.pending, key)
	status := corev1.LoadBalancerStatus{}
	for _, a := range addresses {
		status.Ingress = append(status.Ingress,
			corev1.LoadBalancerIngress{IP: a.String(), IPMode: new(corev1.LoadBalancerIPModeVIP)})
	}
	if marked(s) && equality.Semantic.DeepEqual(s.Status.LoadBalancer, status) {
		return nil
	}
	b.recorder.Event(s, corev1.EventTypeNormal, "EnsuringLoadBalancer", "Ensuring load balancer")
	for _, a := range addresses {
		b.assigned[a] = s.UID
	}
	// The same request adds the finalizer: without it the address could not be released.
	if err := b.patch(ctx, s, finalizersWith(s), status); err != nil {
		return err
	}
	b.recorder.Event(s, corev1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer")
	return nil
}

// cleanUp removes the finalizer and the addresses from the Service, and releases the addresses.
func (b *balancer) cleanUp(ctx context.Context, key string, s *corev1.Service) error {
	delete(b.pending, key)
	b.recorder.Event(s, corev1.EventTypeNormal, "DeletingLoadBalancer", "Deleting load balancer")
	finalizers := slices.DeleteFunc(slices.Clone(s.Finalizers), func(f string) bool { return f == finalizer })
	if err := b.patch(ctx, s, finalizers, corev1.LoadBalancerStatus{}); err != nil {
		return err
	}
	b.recorder.Event(s, corev1.EventTypeNormal, "DeletedLoadBalancer", "Deleted load balancer")
	for a, owner := range b.assigned {
		if owner == s.UID {
			delete(b.assigned, a)
		}
	}
	b.enqueuePending()
	return nil
}

func finalizersWith(s *corev1.Service) []string {
	if marked(s) {
		return s.Finalizers
	}
	return append(slices.Clone(s.Finalizers), finalizer)
}

// patch writes finalizers and addresses in one request to the status, because the role of the controller allows no
// other write.
func (b *balancer) patch(ctx context.Context, s *corev1.Service, finalizers []string,
	status corev1.LoadBalancerStatus) error {
	if finalizers == nil {
		finalizers = []string{}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": s.UID, "resourceVersion": s.ResourceVersion, "finalizers": finalizers},
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": status.Ingress}},
	})
	if err != nil {
		return err
	}
	_, err = b.env.Client().CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update load balancer of service %s: %w", controller.KeyOf(s), err)
	}
	return nil
}

// enqueuePending enqueues the Services that wait for a free address.
func (b *balancer) enqueuePending() {
	for key := range b.pending {
		b.Enqueue(key)
	}
}

var errNone = errors.New("no address is free in the pool")

// choose returns an address for each family: the current one, if the Service may keep it; else the one that the spec
// requests; else the first free one.
func (b *balancer) choose(s *corev1.Service) ([]netip.Addr, error) {
	used, err := b.used(s)
	if err != nil {
		return nil, err
	}
	families := s.Spec.IPFamilies
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	var chosen []netip.Addr
	for i, family := range families {
		v6 := family == corev1.IPv6Protocol
		a, ok := b.keep(s, v6, used)
		if !ok && i == 0 && s.Spec.LoadBalancerIP != "" {
			a, err = netip.ParseAddr(s.Spec.LoadBalancerIP)
			if err != nil || !b.pool.Contains(a) || a.Is6() != v6 {
				return nil, fmt.Errorf("requested address %q is not in the pool", s.Spec.LoadBalancerIP)
			}
			if used[a] {
				return nil, fmt.Errorf("%w: requested address %s is in use", errNone, a)
			}
			ok = true
		}
		if !ok {
			a, ok = b.pool.First(v6, used)
		}
		if !ok {
			if i > 0 && s.Spec.IPFamilyPolicy != nil && *s.Spec.IPFamilyPolicy == corev1.IPFamilyPolicyPreferDualStack {
				continue
			}
			return nil, fmt.Errorf("%w: %s", errNone, family)
		}
		chosen = append(chosen, a)
	}
	return chosen, nil
}

// keep returns the current address of the Service, if it is still valid.
func (b *balancer) keep(s *corev1.Service, v6 bool, used map[netip.Addr]bool) (netip.Addr, bool) {
	for _, in := range s.Status.LoadBalancer.Ingress {
		a, err := netip.ParseAddr(in.IP)
		requested := s.Spec.LoadBalancerIP == "" || s.Spec.LoadBalancerIP == in.IP
		if err == nil && a.Is6() == v6 && b.pool.Contains(a) && !used[a] && requested {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// used returns the addresses of other Services. If two Services have the same address, the older one keeps it.
func (b *balancer) used(s *corev1.Service) (map[netip.Addr]bool, error) {
	all, err := b.services.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	used, alive := map[netip.Addr]bool{}, map[types.UID]bool{}
	for _, other := range all {
		alive[other.UID] = true
		if other.UID == s.UID || !marked(other) {
			continue
		}
		for _, in := range other.Status.LoadBalancer.Ingress {
			if a, err := netip.ParseAddr(in.IP); err == nil && (older(other, s) || !has(s, in.IP)) {
				used[a] = true
			}
		}
	}
	for a, owner := range b.assigned {
		switch {
		case !alive[owner]:
			delete(b.assigned, a)
		case owner != s.UID:
			used[a] = true
		}
	}
	return used, nil
}

func has(s *corev1.Service, ip string) bool {
	return slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool {
		return in.IP == ip
	})
}

func older(a, b *corev1.Service) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID)) < 0
}
