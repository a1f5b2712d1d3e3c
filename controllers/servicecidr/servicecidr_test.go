package servicecidr_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestServiceCIDR_IsKeptWhileItsAddressesAreInUse(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClocked(t, 0, "service-cidr")
	ranges := c.Client.NetworkingV1().ServiceCIDRs()
	ready := func(name string, status metav1.ConditionStatus, reason string) func() bool {
		return func() bool {
			cidr, err := ranges.Get(c.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			is := apimeta.FindStatusCondition(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
			return is != nil && is.Status == status && is.Reason == reason
		}
	}
	deleted := func(name string) func() bool {
		return func() bool {
			_, err := ranges.Get(c.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}
	}
	create := func(name, cidr string) {
		_, err := ranges.Create(c.Context(), &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	c.Reaches("the server's own range is ready", ready("kubernetes", metav1.ConditionTrue, ""))

	create("more", "10.97.0.0/24")
	c.Reaches("ready", ready("more", metav1.ConditionTrue, ""))
	_, err := c.Client.CoreV1().Services("default").Create(c.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.97.0.9", Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, ranges.Delete(c.Context(), "more", metav1.DeleteOptions{}))
	c.Reaches("the range is kept", ready("more", metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating))

	create("wider", "10.97.0.0/16")
	c.Reaches("another range contains the address", deleted("more"))
	c.Reaches("ready", ready("wider", metav1.ConditionTrue, ""))
	require.NoError(t, ranges.Delete(c.Context(), "wider", metav1.DeleteOptions{}))
	c.Reaches("the range is kept", ready("wider", metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating))
	require.NoError(t, c.Client.CoreV1().Services("default").Delete(c.Context(), "web", metav1.DeleteOptions{}))
	c.Reaches("its address is released", deleted("wider"))
}
