// Package endpointslice writes EndpointSlices: the addresses of the pods behind each Service.
//
// Its input is a Service with a selector, the pods that it selects, and their Nodes. Its output is the
// Service's slices. The files:
//
//	endpointslice.go  the controller: its informers, and one sync of a Service
//	endpoint.go       a pod as an endpoint: addresses, ports, conditions, hints
//	topology.go       hints that distribute the endpoints among zones
//	metrics.go        kube-controller-manager's metrics of slices
//
// Package endpointslices computes which slices to write, so that a change of one pod writes one slice.
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

// ManagedBy is the value of the managed-by label of this controller's slices.
const ManagedBy = "endpointslice-controller.k8s.io"

const (
	// The bounds of the back-off of a Service with a pod on a node that the cache does not have yet.
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
	expected controller.VersionExpectations
	triggers backend.Triggers
	metrics  *metrics
	max      int // endpoints per slice
	// hinted has the keys of Services that got hints by their annotation. It only decides which Events are
	// recorded, so a restart may lose it.
	hinted sync.Map
}

// New returns the controller. Its keys are names of Services.
func New(env *controller.Env) (*controller.Controller, error) {
	core, slices := env.Informers.Core().V1(), env.Informers.Discovery().V1().EndpointSlices()
	e := &endpointSlices{
		client: env.Client, services: core.Services().Lister(), pods: core.Pods().Lister(),
		nodes:  core.Nodes().Lister(),
		slices: slices.Lister(), informer: slices.Informer(), max: env.Settings.Endpoints.MaxPerSlice,
		recorder: env.Recorder("endpoint-slice-controller"), metrics: newMetrics(env.Metrics, core.Services().Lister()),
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
		e.expected.Forget(key)
		e.hinted.Delete(key)
		e.metrics.Forget(key)
		return nil // the garbage collector deletes the slices, which the Service owns
	}
	if err != nil || svc.DeletionTimestamp != nil {
		return err
	}
	if !backend.Chosen(svc) {
		e.metrics.Forget(key)
		return nil
	}
	// This check comes before the lists below: a cache that has caught up now cannot return older objects
	// later.
	if !e.expected.Satisfied(key) {
		e.metrics.syncs().WithLabelValues("stale").Inc()
		return nil // the watch event of our write will enqueue the key
	}
	pods, err := e.pods.Pods(namespace).List(labels.SelectorFromSet(svc.Spec.Selector))
	if err != nil {
		return err
	}
	existing, err := endpointslices.Existing(e.slices, svc.Namespace, svc.Name, ManagedBy)
	if err != nil {
		return err
	}
	if text := backend.Unreachable(pods); text != "" {
		e.recorder.Eventf(svc, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s: %s", key, text)
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
	expect := func(s *discoveryv1.EndpointSlice) { e.expected.Expect(key, e.informer, s.ResourceVersion) }
	err = changes.Finalize(ctx, e.client(), e.triggers.Since(svc, pods), expect)
	e.metrics.finalized(key, svc, changes, err)
	if err != nil {
		e.recorder.Eventf(svc, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s: %v", key, err)
		return err
	}
	return missing
}

// desired returns the endpoints that the slices should have, and an error that names the pods left out because
// the cache does not have their nodes.
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

// labelsFor returns the Service's labels with the labels that clients select slices by.
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
