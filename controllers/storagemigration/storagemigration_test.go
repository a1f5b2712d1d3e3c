package storagemigration_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestStorageVersionMigration_LeavesBuiltInObjectsAsTheyAre(t *testing.T) {
	t.Parallel()
	c := controllertest.NewSigning(t, "storage-version-migrator-controller")
	maps := c.Client.CoreV1().ConfigMaps("default")
	before, err := maps.Create(c.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "same"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	migrations := c.Client.StoragemigrationV1().StorageVersionMigrations()
	ends := func(resource, as string) {
		t.Helper()
		_, err := migrations.Create(c.Context(), &storagemigrationv1.StorageVersionMigration{
			ObjectMeta: metav1.ObjectMeta{Name: resource},
			Spec: storagemigrationv1.StorageVersionMigrationSpec{
				Resource: metav1.GroupResource{Resource: resource}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		c.Reaches(resource, func() bool {
			m, err := migrations.Get(c.Context(), resource, metav1.GetOptions{})
			require.NoError(t, err)
			return apimeta.IsStatusConditionTrue(m.Status.Conditions, as) &&
				!apimeta.IsStatusConditionTrue(m.Status.Conditions, "Running")
		})
	}
	ends("configmaps", "Succeeded")
	ends("nothings", "Failed")
	after, err := maps.Get(c.Context(), "same", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, before.ResourceVersion, after.ResourceVersion)
}
