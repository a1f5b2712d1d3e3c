package controllertest

import (
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// CreateNamespace creates a namespace.
func (c *Cluster) CreateNamespace(name string) {
	_, err := c.Client.CoreV1().Namespaces().Create(c.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(c, err)
}

// DeleteNamespace starts the deletion of a namespace.
func (c *Cluster) DeleteNamespace(name string) {
	require.NoError(c, c.Client.CoreV1().Namespaces().Delete(c.Context(), name, metav1.DeleteOptions{}))
}

// AwaitNamespaceGone waits until a namespace that is being deleted is gone.
func (c *Cluster) AwaitNamespaceGone(name string) {
	c.Helper()
	c.Eventually("namespace "+name+" is gone", func() bool {
		_, err := c.Client.CoreV1().Namespaces().Get(c.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// CreateMap creates a ConfigMap with owners.
func (c *Cluster) CreateMap(namespace, name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	cm, err := c.Client.CoreV1().ConfigMaps(namespace).Create(c.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}, metav1.CreateOptions{})
	require.NoError(c, err)
	return cm
}

// Map returns the present state of a ConfigMap, or nil.
func (c *Cluster) Map(namespace, name string) *corev1.ConfigMap {
	cm, err := c.Client.CoreV1().ConfigMaps(namespace).Get(c.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(c, err)
	return cm
}

// DeleteMap deletes a ConfigMap.
func (c *Cluster) DeleteMap(name string, policy metav1.DeletionPropagation) {
	require.NoError(c, c.Client.CoreV1().ConfigMaps("default").Delete(c.Context(), name,
		metav1.DeleteOptions{PropagationPolicy: &policy}))
}

// AwaitCollected waits until the garbage collector has handled all earlier changes in a namespace: it waits for
// the collection of a probe, because the probe's events follow all others.
func (c *Cluster) AwaitCollected(namespace string) {
	c.Helper()
	probe := c.CreateMap(namespace, "probe", metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "never",
		UID: types.UID("never-" + c.Name())})
	c.Eventually("probe collected", func() bool { return c.Map(namespace, probe.Name) == nil })
}

// Slices returns the EndpointSlices of a Service.
func (c *Cluster) Slices(service string) []discoveryv1.EndpointSlice {
	list, err := c.Client.DiscoveryV1().EndpointSlices("default").List(c.Context(),
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	require.NoError(c, err)
	return list.Items
}
