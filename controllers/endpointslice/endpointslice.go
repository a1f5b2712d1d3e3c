// Package endpointslice writes EndpointSlices: the addresses of the pods behind each Service.
//
// In comes a Service with a selector, the pods that it selects, and the Nodes they are on; out go
// its slices. The files:
//
//	endpointslice.go  the controller: its informers, and one sync of a Service
//	endpoint.go       a pod as an endpoint: addresses, ports, conditions, hints
//	topology.go       hints that share the endpoints out among zones
//
// Which slices to write, so that one pod's change writes one slice, is worked out by package endpointslices.
package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/coxswain-dev/coxswain/controllers/lib/backend"
	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/endpointslices"
)

// ManagedBy is the label value of the slices that are this controller's.
const ManagedBy = "endpointslice-controller.k8s.io"

const (
	// A Service with a pod on a node that the cache does not know is reconciled again after these.
	minBackoff = time.Second
	maxBackoff = 1000 * time.Second
)

type endpointSlices struct {
	*controller.Controller
	client   func() kubernetes.Interface
	services corelisters.ServiceLister
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
	slices   discoverylisters.EndpointSliceLister
	informer cache.SharedIndexInformer
	recorder record.EventRecorder
	written  controller.Written
	triggers backend.Triggers
	max      int // endpoints of a slice
	// hinted are the keys of Services that have had hints by their annotation, of which only events depend.
	hinted sync.Map
}

// New returns the controller. Its keys are those of Services.
func New(env *controller.Env) (*controller.Controller, error) {
	core, slices := env.Informers.Core().V1(), env.Informers.Discovery().V1().EndpointSlices()
	e := &endpointSlices{
		client: env.Client, services: core.Services().Lister(), pods: core.Pods().Lister(),
		nodes:  core.Nodes().Lister(),
		slices: slices.Lister(), informer: slices.Informer(), max: env.Settings.Endpoints.MaxPerSlice,
		recorder: env.Recorder("endpoint-slice-controller"),
	}
	e.Controller = controller.NewWithBackoff(env, "endpointslice", e.reconcile, minBackoff, maxBackoff)
	backend.Watch(e.Controller, env.Informers, env.Settings.Endpoints.SliceBatchPeriod)
	controller.Watch(e.Controller, core.Nodes().Informer(), controller.Handler[*corev1.Node]{
		Add:    func(*corev1.Node) { e.nodesChanged() },
		Delete: func(*corev1.Node) { e.nodesChanged() },
		Update: func(old, n *corev1.Node) {
			if nodeMatters(old, n) {
				e.nodesChanged()
			}
		},
	})
	controller.Watch(e.Controller, slices.Informer(), controller.Handler[*discoveryv1.EndpointSlice]{
		Add: e.sliceChanged, Delete: e.sliceChanged,
		Update: func(old, s *discoveryv1.EndpointSlice) {
			e.sliceChanged(s)
			if old.Labels[discoveryv1.LabelServiceName] != s.Labels[discoveryv1.LabelServiceName] || !ours(s) {
				e.sliceChanged(old)
			}
		},
	})
	return e.Controller, nil
}

func ours(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[discoveryv1.LabelManagedBy] == ManagedBy
}

func (e *endpointSlices) sliceChanged(s *discoveryv1.EndpointSlice) {
	if name := s.Labels[discoveryv1.LabelServiceName]; name != "" && ours(s) {
		e.Enqueue(cache.ObjectName{Namespace: s.Namespace, Name: name}.String())
	}
}

func (e *endpointSlices) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	svc, err := e.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		e.triggers.Forget(key)
		e.written.Forget(key)
		e.hinted.Delete(key)
		return nil // the slices are its dependents: the garbage collector's
	}
	if err != nil || !backend.Chosen(svc) || svc.DeletionTimestamp != nil {
		return err
	}
	// Asked before the cache is read, so that what is read is no older than that.
	if !e.written.Shown(key) {
		return nil // the event that we wait for brings us back
	}
	pods, err := e.pods.Pods(namespace).List(labels.SelectorFromSet(svc.Spec.Selector))
	if err != nil {
		return err
	}
	existing, err := endpointslices.Existing(e.slices, svc.Namespace, svc.Name, ManagedBy)
	if err != nil {
		return err
	}
	desired, missing := e.desired(svc, pods)
	changes := endpointslices.Reconcile(endpointslices.Owner{
		Namespace: svc.Namespace, Name: svc.Name, Reference: *metav1.NewControllerRef(svc,
			corev1.SchemeGroupVersion.WithKind("Service")),
		Labels: labelsFor(svc), MaxEndpoints: e.max, Placeholder: true, KeepHints: topologyAware(svc),
	}, existing, desired)
	if topologyAware(svc) {
		e.hint(svc, changes, existing)
	} else {
		e.unhinted(svc)
	}
	noted := func(s *discoveryv1.EndpointSlice) { e.written.Note(key, e.informer, s.ResourceVersion) }
	if err := changes.Finalize(ctx, e.client(), e.triggers.Since(svc, pods), noted); err != nil {
		e.recorder.Eventf(svc, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s: %v", key, err)
		return err
	}
	return missing
}

// desired returns the endpoints that there should be, and an error that names pods which had to be
// left out because their nodes are not known.
func (e *endpointSlices) desired(svc *corev1.Service, pods []*corev1.Pod) (endpointslices.Desired, error) {
	l := endpointslices.Desired{}
	for _, t := range addressTypes(svc) {
		l[t] = endpointslices.PortGroups{}
	}
	var errs []error
	for _, pod := range pods {
		if !backend.Serves(pod) {
			continue
		}
		node, err := e.nodes.Get(pod.Spec.NodeName)
		if err != nil && !svc.Spec.PublishNotReadyAddresses {
			errs = append(errs, fmt.Errorf("place pod %s on node %q: %w", controller.KeyOf(pod),
				pod.Spec.NodeName, err))
			continue
		}
		ports := portsOf(svc, pod)
		for t, groups := range l {
			if endpoint, ok := endpointOf(svc, pod, node, t); ok {
				groups.Add(ports, endpoint)
			}
		}
	}
	return l, errors.Join(errs...)
}

// labelsFor are the Service's labels and those by which slices are found.
func labelsFor(svc *corev1.Service) map[string]string {
	labels := maps.Clone(svc.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	delete(labels, corev1.IsHeadlessService)
	if backend.Headless(svc) {
		labels[corev1.IsHeadlessService] = ""
	}
	labels[discoveryv1.LabelServiceName] = svc.Name
	labels[discoveryv1.LabelManagedBy] = ManagedBy
	return labels
}
