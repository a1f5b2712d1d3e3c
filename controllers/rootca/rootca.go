// Package rootca maintains the ConfigMap "kube-root-ca.crt" in every namespace. It has the certificates that
// authenticate the API server to pods.
package rootca

import (
	"context"
	"errors"
	"maps"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const (
	name     = "kube-root-ca.crt"
	key      = "ca.crt"
	describe = "kubernetes.io/description"
	about    = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints " +
		"such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

type publisher struct {
	*controller.Controller
	client     func() kubernetes.Interface
	namespaces corelisters.NamespaceLister
	maps       corelisters.ConfigMapLister
	data       map[string]string
	clock      clock.PassiveClock

	syncs    func() *prometheus.CounterVec
	duration func() *prometheus.HistogramVec
}

// New returns the controller. Its keys are namespaces. Without a root CA in env it has no
// certificates to publish, and does nothing.
func New(env *controller.Env) (*controller.Controller, error) {
	core := env.Informers.Core().V1()
	p := &publisher{
		client: env.Client, namespaces: core.Namespaces().Lister(), maps: core.ConfigMaps().Lister(),
		data: map[string]string{key: string(env.RootCA)}, clock: env.Clock,
		syncs: env.Metrics.Counter("root_ca_cert_publisher_sync_total",
			"Number of namespace syncs happened in root ca cert publisher.", "code"),
		duration: env.Metrics.Histogram("root_ca_cert_publisher_sync_duration_seconds",
			"Number of namespace syncs happened in root ca cert publisher.",
			prometheus.ExponentialBuckets(0.001, 2, 15), "code"),
	}
	p.Controller = controller.New(env, "root-ca-cert-publisher", p.reconcile)
	if len(env.RootCA) == 0 {
		return p.Controller, nil
	}
	controller.Watch(p.Controller, core.Namespaces().Informer(), controller.Handler[*corev1.Namespace]{
		Add: func(ns *corev1.Namespace) { p.Enqueue(ns.Name) },
	})
	changed := func(cm *corev1.ConfigMap) {
		if cm.Name == name {
			p.Enqueue(cm.Namespace)
		}
	}
	controller.Watch(p.Controller, core.ConfigMaps().Informer(), controller.Handler[*corev1.ConfigMap]{
		Update: func(_, cm *corev1.ConfigMap) { changed(cm) }, Delete: changed,
	})
	return p.Controller, nil
}

func (p *publisher) reconcile(ctx context.Context, namespace string) error {
	began := p.clock.Now()
	err := p.publish(ctx, namespace)
	code := "200"
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		code = strconv.Itoa(int(status.Status().Code))
	} else if err != nil {
		code = "500"
	}
	p.syncs().WithLabelValues(code).Inc()
	p.duration().WithLabelValues(code).Observe(p.clock.Since(began).Seconds())
	return err
}

// publish writes the ConfigMap of a namespace.
func (p *publisher) publish(ctx context.Context, namespace string) error {
	ns, err := p.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || ns.DeletionTimestamp != nil {
		return err
	}
	cm, err := p.maps.ConfigMaps(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = p.client().CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{describe: about}},
			Data:       p.data,
		}, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err) {
			return nil
		}
		// If it exists but is not in the cache yet, its event enqueues the namespace again.
		return err
	case err != nil || maps.Equal(cm.Data, p.data):
		return err
	}
	cm = cm.DeepCopy()
	cm.Data = maps.Clone(p.data)
	_, err = p.client().CoreV1().ConfigMaps(namespace).Update(ctx, cm, metav1.UpdateOptions{})
	return err
}
