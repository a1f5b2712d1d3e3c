package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

// follow runs the enforcer with the API server's objects until ctx ends.
func (e *Enforcer) follow(ctx context.Context) error {
	factory := informer.NewFactory(e.client, informer.Options{Transform: strip, Log: e.options.Log})
	if len(e.options.Nodes) == 1 {
		own := fields.OneTermEqualSelector("metadata.name", e.options.Nodes[0]).String()
		factory.Restrict(&corev1.Node{}, func(o *metav1.ListOptions) { o.FieldSelector = own })
	}
	core := factory.Core().V1()
	synced, err := e.watch(core.Pods().Informer(), core.Namespaces().Informer(), core.Nodes().Informer(),
		factory.Networking().V1().NetworkPolicies().Informer())
	if err != nil {
		return fmt.Errorf("network policy: start informers: %w", err)
	}
	for _, watched := range []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource("pods"),
		corev1.SchemeGroupVersion.WithResource("namespaces"),
		networkingv1.SchemeGroupVersion.WithResource("networkpolicies")} {
		if i := factory.Existing(watched); i != nil {
			i.OnError(e.refused)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer factory.Shutdown()
	defer cancel()
	factory.StartWithContext(ctx)
	if cache.WaitFor(ctx, "", synced...) {
		e.known()
		e.run(ctx)
	}
	return nil
}

// watch passes all changes of objects to the enforcer.
func (e *Enforcer) watch(pods, namespaces, nodes, policies cache.SharedIndexInformer) ([]cache.DoneChecker, error) {
	var synced []cache.DoneChecker
	var failed error
	add := func(i cache.SharedIndexInformer, set, drop func(any) bool) {
		change := func(with func(any) bool) func(any) {
			return func(o any) { e.change(func() bool { return with(o) }) }
		}
		r, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: change(set), UpdateFunc: func(_, o any) { change(set)(o) },
			DeleteFunc: func(o any) { change(drop)(last(o)) },
		})
		if err != nil {
			failed = errors.Join(failed, err)
			return
		}
		synced = append(synced, r.HasSyncedChecker())
	}
	add(pods, func(o any) bool { return e.podSet(o.(*corev1.Pod)) },
		func(o any) bool { return e.podGone(o.(*corev1.Pod)) })
	add(namespaces, func(o any) bool {
		n := o.(*corev1.Namespace)
		return e.setNamespace(Namespace{n.Name, n.Labels})
	}, func(o any) bool { return e.dropNamespace(o.(*corev1.Namespace).Name) })
	add(nodes, func(o any) bool { return e.nodeSet(o.(*corev1.Node)) },
		func(o any) bool { return e.nodeGone(o.(*corev1.Node)) })
	add(policies, func(o any) bool { return e.setPolicy(o.(*networkingv1.NetworkPolicy)) },
		func(o any) bool { return e.dropPolicy(nameOf(o.(*networkingv1.NetworkPolicy))) })
	return synced, failed
}

// last returns the last seen state of a deleted object.
func last(o any) any {
	if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		return tombstone.Obj
	}
	return o
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// podSet updates a pod. The addresses that Protect assigned to it take precedence over its status.
func (e *Enforcer) podSet(p *corev1.Pod) bool {
	pod, ok := podOf(p)
	if !ok {
		return e.podGone(p)
	}
	if assigned := e.assigned[pod.NamespacedName]; assigned.pod == pod.UID && assigned.addresses != nil {
		pod.Addresses = assigned.addresses
	}
	return e.setPod(pod)
}

func (e *Enforcer) podGone(p *corev1.Pod) bool {
	delete(e.assigned, nameOf(p))
	return e.dropPod(nameOf(p))
}

// nodeSet updates the addresses of one of the machine's Nodes.
func (e *Enforcer) nodeSet(n *corev1.Node) bool {
	if !slices.Contains(e.options.Nodes, n.Name) {
		return false
	}
	var addresses []netip.Addr
	for _, a := range n.Status.Addresses {
		if address, err := netip.ParseAddr(a.Address); err == nil { // other ones are names
			addresses = append(addresses, address.Unmap())
		}
	}
	if slices.Equal(addresses, e.machine[n.Name]) {
		return false
	}
	e.machine[n.Name] = addresses
	return true
}

func (e *Enforcer) nodeGone(n *corev1.Node) bool {
	_, ok := e.machine[n.Name]
	delete(e.machine, n.Name)
	return ok
}

// strip removes all fields of pods and Nodes that policies do not need, 90 % of their memory.
func strip(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Pod:
		return stripPod(o), nil
	case *corev1.Node:
		n := &corev1.Node{ObjectMeta: stripMeta(&o.ObjectMeta)}
		n.Status.Addresses = o.Status.Addresses
		return n, nil
	case *networkingv1.NetworkPolicy:
		return &networkingv1.NetworkPolicy{ObjectMeta: stripMeta(&o.ObjectMeta), Spec: o.Spec}, nil
	}
	return o, nil
}

func stripMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, Labels: m.Labels}
}

func stripPod(p *corev1.Pod) *corev1.Pod {
	s := &corev1.Pod{ObjectMeta: stripMeta(&p.ObjectMeta)}
	s.Spec.NodeName, s.Spec.HostNetwork = p.Spec.NodeName, p.Spec.HostNetwork
	s.Status.Phase, s.Status.PodIP, s.Status.PodIPs = p.Status.Phase, p.Status.PodIP, p.Status.PodIPs
	s.Spec.Containers, s.Spec.InitContainers = namedPorts(p.Spec.Containers), namedPorts(p.Spec.InitContainers)
	return s
}

// namedPorts returns the containers that have named ports, reduced to their ports.
func namedPorts(containers []corev1.Container) (some []corev1.Container) {
	for i := range containers {
		c := &containers[i]
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name != "" }) {
			some = append(some, corev1.Container{Ports: c.Ports, RestartPolicy: c.RestartPolicy})
		}
	}
	return some
}
