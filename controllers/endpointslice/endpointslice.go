// Package endpointslice tells, in EndpointSlices, where the pods behind each Service are.
//
// In comes a Service with a selector, the pods that it selects, and the Nodes they are on; out go
// its slices. The files:
//
//	endpointslice.go  the controller: what it listens to, and one look at a Service
//	endpoint.go       a pod as an endpoint: addresses, ports, conditions, hints
//	plan.go           which slices to write so that as few as possible are written
//
// A slice is read by every node, so churn is dear: a slice whose endpoints did not change is
// not touched, and one pod's change writes one slice. Slices are not kept compact for that reason.
package endpointslice

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/coxswain-dev/coxswain/controllers/backend"
	"github.com/coxswain-dev/coxswain/controllers/controller"
)

// ManagedBy is the label value of the slices that are this controller's.
const ManagedBy = "endpointslice-controller.k8s.io"

const (
	// MaxEndpoints is how many endpoints one slice holds.
	MaxEndpoints = 100

	// A Service with a pod on a node that the cache does not know is looked at again after these.
	minBackoff = time.Second
	maxBackoff = 1000 * time.Second
)

type endpointSlices struct {
	*controller.Controller
	client   kubernetes.Interface
	services corelisters.ServiceLister
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
	slices   discoverylisters.EndpointSliceLister
	informer cache.SharedIndexInformer
	recorder record.EventRecorder
	written  controller.Written
	triggers backend.Triggers
}

// New returns the controller. Its keys are those of Services.
func New(env *controller.Env) (*controller.Controller, error) {
	core, slices := env.Informers.Core().V1(), env.Informers.Discovery().V1().EndpointSlices()
	e := &endpointSlices{
		client: env.Client, services: core.Services().Lister(), pods: core.Pods().Lister(), nodes: core.Nodes().Lister(),
		slices: slices.Lister(), informer: slices.Informer(), recorder: env.Recorder("endpoint-slice-controller"),
	}
	e.Controller = controller.NewWithBackoff(env, "endpointslice", e.reconcile, minBackoff, maxBackoff)
	backend.Watch(e.Controller, env.Informers)
	controller.Watch(e.Controller, core.Nodes().Informer(), controller.Handler[*corev1.Node]{})
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
	existing, err := e.existing(svc)
	if err != nil {
		return err
	}
	wanted, missing := e.wanted(svc, pods)
	p := newPlan(svc, existing, wanted)
	if err := e.write(ctx, key, p, e.triggers.Since(svc, pods)); err != nil {
		e.recorder.Eventf(svc, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s: %v", key, err)
		return err
	}
	return missing
}

// existing are the Service's slices that are ours and are to stay.
func (e *endpointSlices) existing(svc *corev1.Service) ([]*discoveryv1.EndpointSlice, error) {
	all, err := e.slices.EndpointSlices(svc.Namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: ManagedBy,
	}))
	if err != nil {
		return nil, err
	}
	var alive []*discoveryv1.EndpointSlice
	for _, s := range all {
		if s.DeletionTimestamp == nil {
			alive = append(alive, s)
		}
	}
	return alive, nil
}

// wanted are the endpoints that there should be, and an error that names pods which had to be
// left out because their nodes are not known.
func (e *endpointSlices) wanted(svc *corev1.Service, pods []*corev1.Pod) (layout, error) {
	l := layout{}
	for _, t := range addressTypes(svc) {
		l[t] = map[string]*group{}
	}
	var errs []error
	for _, pod := range pods {
		if !backend.Serves(pod) {
			continue
		}
		node, err := e.nodes.Get(pod.Spec.NodeName)
		if err != nil && !svc.Spec.PublishNotReadyAddresses {
			errs = append(errs, fmt.Errorf("skipping pod %s: node %q: %w", controller.KeyOf(pod), pod.Spec.NodeName, err))
			continue
		}
		ports := portsOf(svc, pod)
		for t, groups := range l {
			if endpoint, ok := endpointOf(svc, pod, node, t); ok {
				groups.add(ports, endpoint)
			}
		}
	}
	return l, errors.Join(errs...)
}

// write carries out a plan. since is what the slices' annotation tells, if it is not zero.
func (e *endpointSlices) write(ctx context.Context, key string, p *plan, since time.Time) error {
	for _, s := range append(p.create, p.update...) {
		annotate(s, since)
	}
	client := e.client.DiscoveryV1().EndpointSlices(p.namespace)
	var errs []error
	note := func(s *discoveryv1.EndpointSlice, err error, doing string) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", doing, err))
			return
		}
		e.written.Note(key, e.informer, s.ResourceVersion)
	}
	for _, s := range p.create {
		created, err := client.Create(ctx, s, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		note(created, err, "create a slice")
	}
	for _, s := range p.update {
		updated, err := client.Update(ctx, s, metav1.UpdateOptions{})
		note(updated, err, "update slice "+s.Name)
	}
	for _, s := range p.delete {
		err := client.Delete(ctx, s.Name, *metav1.NewPreconditionDeleteOptions(string(s.UID)))
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete slice %s: %w", s.Name, err))
		}
	}
	return errors.Join(errs...)
}

func annotate(s *discoveryv1.EndpointSlice, since time.Time) {
	if since.IsZero() {
		delete(s.Annotations, corev1.EndpointsLastChangeTriggerTime)
		return
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[corev1.EndpointsLastChangeTriggerTime] = since.UTC().Format(time.RFC3339Nano)
}
