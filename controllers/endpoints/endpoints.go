// Package endpoints keeps, for each Service with a selector, the Endpoints object of its name:
// the older form of EndpointSlices, which some clients still read.
//
// An Endpoints object carries less than EndpointSlices do: one address family, at most a thousand addresses,
// and no terminating pods.
package endpoints

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	utilnet "k8s.io/utils/net"

	"github.com/coxswain-dev/coxswain/controllers/lib/backend"
	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const (
	// MaxAddresses is the largest number of addresses in an Endpoints object.
	MaxAddresses = 1000

	managedByLabel = "endpoints.kubernetes.io/managed-by"
	managedBy      = "endpoint-controller"
	truncated      = "truncated"

	minBackoff = time.Second
	maxBackoff = 1000 * time.Second
)

type endpoints struct {
	*controller.Controller
	client   func() kubernetes.Interface
	services corelisters.ServiceLister
	pods     corelisters.PodLister
	lister   corelisters.EndpointsLister
	informer cache.SharedIndexInformer
	recorder record.EventRecorder
	expected controller.VersionExpectations
	triggers backend.Triggers
}

// New returns the controller. A key names a Service and the Endpoints object of the same namespace and name.
func New(env *controller.Env) (*controller.Controller, error) {
	core := env.Informers.Core().V1()
	e := &endpoints{
		client: env.Client, services: core.Services().Lister(), pods: core.Pods().Lister(),
		lister: core.Endpoints().Lister(), informer: core.Endpoints().Informer(),
		recorder: env.Recorder("endpoint-controller"),
	}
	e.Controller = controller.NewWithBackoff(env, "endpoint", e.reconcile, minBackoff, maxBackoff)
	backend.Watch(e.Controller, env.Informers, env.Settings.Endpoints.BatchPeriod)
	wake := func(o *corev1.Endpoints) { e.EnqueueObject(o) }
	controller.Watch(e.Controller, e.informer, controller.Handler[*corev1.Endpoints]{
		// The first list enqueues every Endpoints object, which finds Services that were deleted while no
		// controller ran.
		Add: wake, Update: func(_, o *corev1.Endpoints) { wake(o) }, Delete: wake,
	})
	return e.Controller, nil
}

func (e *endpoints) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	svc, err := e.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return e.serviceGone(ctx, key, namespace, name)
	}
	if err != nil || !backend.Chosen(svc) || !e.expected.Satisfied(key) {
		return err
	}
	pods, err := e.pods.Pods(namespace).List(labels.SelectorFromSet(svc.Spec.Selector))
	if err != nil {
		return err
	}
	current, err := e.lister.Endpoints(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if text := backend.Unreachable(pods); text != "" {
		e.recorder.Eventf(svc, corev1.EventTypeWarning, "FailedToUpdateEndpoint", "Failed to update endpoint %s: %s",
			key, text)
	}
	desired, cut := subsets(svc, pods)
	next := e.next(svc, current, desired, cut)
	since := e.triggers.Since(svc, pods)
	if current != nil && sameEndpoints(current, next) {
		return nil
	}
	annotate(next, since)
	return e.write(ctx, key, svc, next, current == nil)
}

// serviceGone deletes the Endpoints of a Service that no longer exists, if this controller manages them. Others
// may keep Endpoints without a Service, for example for an old leader election; they stay.
func (e *endpoints) serviceGone(ctx context.Context, key, namespace, name string) error {
	e.triggers.Forget(key)
	e.expected.Forget(key)
	current, err := e.lister.Endpoints(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && current.Labels[managedByLabel] != managedBy {
		return nil
	}
	if err != nil {
		return err
	}
	err = e.client().CoreV1().Endpoints(namespace).Delete(ctx, name,
		*metav1.NewPreconditionDeleteOptions(string(current.UID)))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (e *endpoints) next(svc *corev1.Service, current *corev1.Endpoints, desired []corev1.EndpointSubset,
	cut bool) *corev1.Endpoints {
	next := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name}}
	if current != nil {
		next = current.DeepCopy()
	}
	next.Subsets = desired
	next.Labels = maps.Clone(svc.Labels)
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	delete(next.Labels, corev1.IsHeadlessService)
	if backend.Headless(svc) {
		next.Labels[corev1.IsHeadlessService] = ""
	}
	next.Labels[managedByLabel] = managedBy
	delete(next.Annotations, corev1.EndpointsOverCapacity)
	if cut {
		setAnnotation(next, corev1.EndpointsOverCapacity, truncated)
	}
	return next
}

// sameEndpoints compares two Endpoints, ignoring the trigger time annotation: it changes with every write.
func sameEndpoints(a, b *corev1.Endpoints) bool {
	return equality.Semantic.DeepEqual(a.Subsets, b.Subsets) && maps.Equal(a.Labels, b.Labels) &&
		a.Annotations[corev1.EndpointsOverCapacity] == b.Annotations[corev1.EndpointsOverCapacity]
}

func annotate(e *corev1.Endpoints, since time.Time) {
	if since.IsZero() {
		delete(e.Annotations, corev1.EndpointsLastChangeTriggerTime)
		return
	}
	setAnnotation(e, corev1.EndpointsLastChangeTriggerTime, since.UTC().Format(time.RFC3339Nano))
}

func setAnnotation(e *corev1.Endpoints, key, value string) {
	if e.Annotations == nil {
		e.Annotations = map[string]string{}
	}
	e.Annotations[key] = value
}

func (e *endpoints) write(ctx context.Context, key string, svc *corev1.Service, next *corev1.Endpoints,
	create bool) error {
	client := e.client().CoreV1().Endpoints(next.Namespace)
	var stored *corev1.Endpoints
	var err error
	if create {
		stored, err = client.Create(ctx, next, metav1.CreateOptions{})
	} else {
		stored, err = client.Update(ctx, next, metav1.UpdateOptions{})
	}
	switch {
	case err == nil:
		e.expected.Expect(key, e.informer, stored.ResourceVersion)
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsConflict(err):
		return err
	case create:
		e.recorder.Eventf(svc, corev1.EventTypeWarning, "FailedToCreateEndpoint",
			"Failed to create endpoint for service %s: %v", key, err)
	default:
		e.recorder.Eventf(next, corev1.EventTypeWarning, "FailedToUpdateEndpoint", "Failed to update endpoint %s: %v",
			key, err)
	}
	return err
}

// subsets groups the pods' addresses by their ports, and reports whether some had to be left out. The order is
// deterministic, so that an unchanged Service causes no write.
func subsets(svc *corev1.Service, pods []*corev1.Pod) (all []corev1.EndpointSubset, cut bool) {
	byPorts := map[string]*corev1.EndpointSubset{}
	for _, pod := range pods {
		address, ready, ok := addressOf(svc, pod)
		if !ok {
			continue
		}
		ports, ok := portsOf(svc, pod)
		if !ok {
			continue
		}
		key := portsKey(ports)
		if byPorts[key] == nil {
			byPorts[key] = &corev1.EndpointSubset{Ports: ports}
		}
		if s := byPorts[key]; ready {
			s.Addresses = append(s.Addresses, address)
		} else {
			s.NotReadyAddresses = append(s.NotReadyAddresses, address)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(byPorts)) {
		s := byPorts[key]
		slices.SortFunc(s.Addresses, byAddress)
		slices.SortFunc(s.NotReadyAddresses, byAddress)
		all = append(all, *s)
	}
	return truncate(all)
}

func portsKey(ports []corev1.EndpointPort) string {
	text, err := json.Marshal(ports)
	if err != nil {
		panic(err) // API types always have a JSON form
	}
	return string(text)
}

func byAddress(a, b corev1.EndpointAddress) int {
	return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(a.TargetRef.UID, b.TargetRef.UID))
}

// truncate drops addresses beyond MaxAddresses, unready ones first, and reports whether it dropped any.
func truncate(all []corev1.EndpointSubset) (kept []corev1.EndpointSubset, cut bool) {
	left := MaxAddresses
	take := func(addresses []corev1.EndpointAddress) []corev1.EndpointAddress {
		n := min(left, len(addresses))
		cut = cut || n < len(addresses)
		left -= n
		return addresses[:n:n]
	}
	for i := range all {
		all[i].Addresses = take(all[i].Addresses)
	}
	for i := range all {
		all[i].NotReadyAddresses = take(all[i].NotReadyAddresses)
	}
	return slices.DeleteFunc(all, func(s corev1.EndpointSubset) bool {
		return len(s.Addresses)+len(s.NotReadyAddresses) == 0
	}), cut
}

// addressOf returns the pod's address in the Service's first IP family, and whether it is published as ready.
// ok is false for a pod that does not belong in the Endpoints.
func addressOf(svc *corev1.Service, pod *corev1.Pod) (address corev1.EndpointAddress, ready, ok bool) {
	published := svc.Spec.PublishNotReadyAddresses
	if !backend.Serves(pod) || pod.DeletionTimestamp != nil && !published {
		return address, false, false
	}
	v6 := utilnet.IsIPv6String(svc.Spec.ClusterIP)
	if len(svc.Spec.IPFamilies) > 0 {
		v6 = svc.Spec.IPFamilies[0] == corev1.IPv6Protocol
	}
	ips := backend.Addresses(pod, v6)
	if len(ips) == 0 {
		return address, false, false
	}
	address = corev1.EndpointAddress{
		IP: ips[0], Hostname: backend.Hostname(svc, pod),
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	if pod.Spec.NodeName != "" {
		address.NodeName = &pod.Spec.NodeName
	}
	return address, published || controller.PodReady(pod), true
}

// portsOf resolves the Service's ports to numbers of the pod's ports, in a deterministic order. ok is false for
// a pod that has none of them, except where the Service is headless and has no ports.
func portsOf(svc *corev1.Service, pod *corev1.Pod) (ports []corev1.EndpointPort, ok bool) {
	if len(svc.Spec.Ports) == 0 {
		return nil, backend.Headless(svc)
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		number, err := backend.Port(pod, p)
		if err != nil {
			continue
		}
		ports = append(ports, corev1.EndpointPort{Name: p.Name, Port: number, Protocol: p.Protocol,
			AppProtocol: p.AppProtocol})
	}
	slices.SortFunc(ports, func(a, b corev1.EndpointPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return ports, len(ports) > 0
}
