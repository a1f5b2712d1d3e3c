package controllers_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestServiceCIDR_StaysWhileItsAddressesAreInUse(t *testing.T) {
	t.Parallel()
	c := newClocked(t, 0, "service-cidr")
	ranges := c.client.NetworkingV1().ServiceCIDRs()
	ready := func(name string, status metav1.ConditionStatus, reason string) func() bool {
		return func() bool {
			cidr, err := ranges.Get(c.ctx, name, metav1.GetOptions{})
			require.NoError(t, err)
			is := apimeta.FindStatusCondition(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
			return is != nil && is.Status == status && is.Reason == reason
		}
	}
	gone := func(name string) func() bool {
		return func() bool {
			_, err := ranges.Get(c.ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}
	}
	create := func(name, cidr string) {
		_, err := ranges.Create(c.ctx, &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	c.reaches("the server's own range is ready", ready("kubernetes", metav1.ConditionTrue, ""))

	create("more", "10.97.0.0/24")
	c.reaches("ready", ready("more", metav1.ConditionTrue, ""))
	_, err := c.client.CoreV1().Services("default").Create(c.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.97.0.9", Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, ranges.Delete(c.ctx, "more", metav1.DeleteOptions{}))
	c.reaches("it must stay", ready("more", metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating))

	create("wider", "10.97.0.0/16")
	c.reaches("another range has the address", gone("more"))
	c.reaches("ready", ready("wider", metav1.ConditionTrue, ""))
	require.NoError(t, ranges.Delete(c.ctx, "wider", metav1.DeleteOptions{}))
	c.reaches("it must stay", ready("wider", metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating))
	require.NoError(t, c.client.CoreV1().Services("default").Delete(c.ctx, "web", metav1.DeleteOptions{}))
	c.reaches("nothing needs it", gone("wider"))
}
