package leasegc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestLeaseHousekeeping_DeletesAbandonedLeases(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClockedWith(t, controllers.Settings{}, "lease-housekeeping-controller")
	lease := func(namespace, name string, renewed time.Time, labels map[string]string) {
		renewal, seconds := metav1.NewMicroTime(renewed), int32(40)
		_, err := c.Client.CoordinationV1().Leases(namespace).Create(c.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &renewal,
				LeaseDurationSeconds: &seconds},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	isDeleted := func(namespace, name string) bool {
		_, err := c.Client.CoordinationV1().Leases(namespace).Get(c.Context(), name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
		return err != nil
	}
	server := map[string]string{"apiserver.kubernetes.io/identity": "kube-apiserver"}
	start, old := c.Now(), c.Now().Add(-2*time.Hour)
	c.CreateNode("silent", nil)
	lease("kube-system", "apiserver-new", start, server)
	lease("kube-system", "leader", old, nil)
	lease("kube-node-lease", "silent", old, nil)
	lease("kube-node-lease", "fresh", start, nil)
	lease("kube-system", "apiserver-old", old, server)
	lease("kube-node-lease", "gone", old, nil)
	c.Reaches("the old ones go", func() bool {
		return isDeleted("kube-system", "apiserver-old") && isDeleted("kube-node-lease", "gone")
	})
	for _, lease := range [][2]string{{"kube-system", "apiserver-new"}, {"kube-system", "leader"},
		{"kube-node-lease", "silent"}, {"kube-node-lease", "fresh"}} {
		require.False(t, isDeleted(lease[0], lease[1]), "%v", lease)
	}
	// A renewed Lease stays, even after its former expiry.
	l, err := c.Client.CoordinationV1().Leases("kube-system").Get(c.Context(), "apiserver-new", metav1.GetOptions{})
	require.NoError(t, err)
	l.Spec.RenewTime = new(metav1.NewMicroTime(start.Add(50 * time.Minute)))
	_, err = c.Client.CoordinationV1().Leases("kube-system").Update(c.Context(), l, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.Passing(time.Minute, "an hour later", func() bool { return isDeleted("kube-node-lease", "fresh") })
	c.Passing(time.Minute, "and another", func() bool { return isDeleted("kube-system", "apiserver-new") })
	require.Greater(t, c.Since(start), 110*time.Minute)
	require.False(t, isDeleted("kube-node-lease", "silent"))
}
