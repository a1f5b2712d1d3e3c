// Package endpointslicemirroring copies Endpoints that users write for Services without a selector into
// EndpointSlices, so that clients that read only slices see them.
//
// The Endpoints must have the name of the Service. They are not mirrored if they have the label
// endpointslice.kubernetes.io/skip-mirror: "true", if they serve an old leader election, or if the Service has
// a selector: its slices then come from its pods.
// https://kubernetes.io/docs/concepts/services-networking/service/#endpoints-mirroring
package endpointslicemirroring

import (
	"context"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	utilnet "k8s.io/utils/net"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/endpointslices"
)

// ManagedBy is the value of the managed-by label of this controller's slices.
const ManagedBy = "endpointslicemirroring-controller.k8s.io"

const (
	// maxPerSlice bounds the endpoints of a mirrored slice. By default a slice holds all mirrored addresses of
	// a subset.
	maxPerSlice = 1000

	minBackoff = time.Second
	maxBackoff = 100 * time.Second

	subsystem = "endpoint_slice_mirroring_controller" // of metrics
)

type mirror struct {
	*controller.Controller
	env       *controller.Env
	services  corelisters.ServiceLister
	endpoints corelisters.EndpointsLister
	slices    discoverylisters.EndpointSliceLister
	informer  cache.SharedIndexInformer
	recorder  record.EventRecorder
	expected  controller.VersionExpectations
	metrics   *endpointslices.Metrics

	skipped, duration func() *prometheus.HistogramVec
}

// New returns the controller. A key names Endpoints and the Service of the same namespace and name.
func New(env *controller.Env) (*controller.Controller, error) {
	core, slices := env.Informers.Core().V1(), env.Informers.Discovery().V1().EndpointSlices()
	m := &mirror{
		env: env, services: core.Services().Lister(), endpoints: core.Endpoints().Lister(), slices: slices.Lister(),
		informer: slices.Informer(),
		recorder: env.Recorder("endpoint-slice-mirroring-controller"),
		metrics:  endpointslices.NewMetrics(env.Metrics, subsystem, "Endpoints"),
		skipped: env.Metrics.Histogram(subsystem+"_addresses_skipped_per_sync", "Number of addresses skipped on each "+
			"Endpoints sync due to being invalid or exceeding MaxEndpointsPerSubset",
			prometheus.ExponentialBuckets(2, 2, 15)),
		duration: env.Metrics.Histogram(subsystem+"_endpoints_sync_duration", "Duration of syncEndpoints() in seconds",
			prometheus.ExponentialBuckets(0.001, 2, 15)),
	}
	m.Controller = controller.NewWithBackoff(env, "endpointslicemirroring", m.reconcile, minBackoff, maxBackoff)
	batch := env.Settings.Endpoints.MirroredBatchPeriod
	wake := func(e *corev1.Endpoints) { m.EnqueueBatched(controller.KeyOf(e), batch) }
	controller.Watch(m.Controller, core.Endpoints().Informer(), controller.Handler[*corev1.Endpoints]{
		Add: wake, Delete: wake,
		Update: func(old, e *corev1.Endpoints) {
			if mirrored(old) || mirrored(e) {
				wake(e)
			}
		},
	})
	controller.Watch(m.Controller, core.Services().Informer(), controller.Handler[*corev1.Service]{
		Add:    func(s *corev1.Service) { m.EnqueueObject(s) },
		Update: func(_, s *corev1.Service) { m.EnqueueObject(s) },
		Delete: func(s *corev1.Service) { m.EnqueueObject(s) },
	})
	enqueueOwner := func(s *discoveryv1.EndpointSlice) {
		if name := s.Labels[discoveryv1.LabelServiceName]; name != "" &&
			s.Labels[discoveryv1.LabelManagedBy] == ManagedBy {
			m.Enqueue(cache.ObjectName{Namespace: s.Namespace, Name: name}.String())
		}
	}
	controller.Watch(m.Controller, slices.Informer(), controller.Handler[*discoveryv1.EndpointSlice]{
		Add: enqueueOwner, Delete: enqueueOwner,
		Update: func(old, s *discoveryv1.EndpointSlice) { enqueueOwner(old); enqueueOwner(s) },
	})
	return m.Controller, nil
}

// mirrored reports whether the labels and annotations of Endpoints allow mirroring.
func mirrored(e *corev1.Endpoints) bool {
	_, leader := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]
	return !leader && e.Labels[discoveryv1.LabelSkipMirror] != "true"
}

func (m *mirror) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // not a key of this controller
	}
	if !m.expected.Satisfied(key) {
		return nil // the watch event of our write will enqueue the key
	}
	existing, err := endpointslices.Existing(m.slices, namespace, name, ManagedBy)
	if err != nil {
		return err
	}
	e, err := m.source(namespace, name)
	if err != nil {
		return err
	}
	if e == nil {
		m.expected.Forget(key)
		m.metrics.Forget(key)
		_, err := endpointslices.Delete(ctx, m.env.Client(), existing)
		return err
	}
	began := m.env.Clock.Now()
	defer func() { m.duration().WithLabelValues().Observe(m.env.Clock.Since(began).Seconds()) }()
	desired, skipped := desiredOf(e, m.env.Settings.Endpoints.MirroredMaxPerSubset)
	if skipped > 0 {
		m.recorder.Eventf(e, corev1.EventTypeWarning, "TooManyAddressesToMirror",
			"A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped",
			m.env.Settings.Endpoints.MirroredMaxPerSubset, skipped)
	}
	changes := endpointslices.Reconcile(endpointslices.Owner{
		Namespace: namespace, Name: name, Labels: labelsFor(e), Annotations: annotationsFor(e),
		MaxEndpoints: maxPerSlice,
		Reference:    *metav1.NewControllerRef(e, corev1.SchemeGroupVersion.WithKind("Endpoints")),
	}, existing, desired)
	expect := func(s *discoveryv1.EndpointSlice) { m.expected.Expect(key, m.informer, s.ResourceVersion) }
	err = changes.Finalize(ctx, m.env.Client(), since(e), expect)
	m.skipped().WithLabelValues().Observe(float64(skipped))
	m.metrics.Finalized(key, changes, true)
	if err != nil {
		m.recorder.Eventf(e, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Endpoints %s: %v", key, err)
		return err
	}
	return nil
}

// source returns the Endpoints to mirror, or nil.
func (m *mirror) source(namespace, name string) (*corev1.Endpoints, error) {
	e, err := m.endpoints.Endpoints(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil || e.DeletionTimestamp != nil || !mirrored(e) {
		return nil, err
	}
	svc, err := m.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil || svc.Spec.Selector != nil {
		return nil, err
	}
	return e, nil
}

func since(e *corev1.Endpoints) time.Time {
	trigger, err := time.Parse(time.RFC3339Nano, e.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{} // unknown
	}
	return trigger
}

func labelsFor(e *corev1.Endpoints) map[string]string {
	all := maps.Clone(e.Labels)
	if all == nil {
		all = map[string]string{}
	}
	all[discoveryv1.LabelServiceName] = e.Name
	all[discoveryv1.LabelManagedBy] = ManagedBy
	return all
}

func annotationsFor(e *corev1.Endpoints) map[string]string {
	all := maps.Clone(e.Annotations)
	if all == nil {
		all = map[string]string{}
	}
	delete(all, corev1.LastAppliedConfigAnnotation)
	delete(all, controller.TTLAnnotation)
	delete(all, corev1.EndpointsLastChangeTriggerTime)
	return all
}

// desiredOf returns the endpoints that the slices should have, and how many addresses exceeded the limit per
// subset.
func desiredOf(e *corev1.Endpoints, limit int) (l endpointslices.Desired, skipped int) {
	l = endpointslices.Desired{}
	for i := range e.Subsets {
		subset := &e.Subsets[i]
		ports := portsOf(subset)
		left := limit
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for j := range addresses {
				if left == 0 {
					skipped++
					continue
				}
				left--
				t := discoveryv1.AddressTypeIPv4
				if utilnet.IsIPv6String(addresses[j].IP) {
					t = discoveryv1.AddressTypeIPv6
				}
				if l[t] == nil {
					l[t] = endpointslices.PortGroups{}
				}
				l[t].Add(ports, endpointOf(&addresses[j], ready))
			}
		}
		add(subset.Addresses, true)
		add(subset.NotReadyAddresses, false)
	}
	return l, skipped
}

func endpointOf(a *corev1.EndpointAddress, ready bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, TargetRef: a.TargetRef,
		NodeName: a.NodeName,
	}
	if a.Hostname != "" {
		e.Hostname = &a.Hostname
	}
	return e
}

func portsOf(subset *corev1.EndpointSubset) []discoveryv1.EndpointPort {
	ports := []discoveryv1.EndpointPort{}
	for i := range subset.Ports {
		p := &subset.Ports[i]
		ports = append(ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol,
			AppProtocol: p.AppProtocol})
	}
	return ports
}
