//go:build e2e

package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CustomResourceConversionWebhook should be able to convert from CR v1 to CR v2
func TestConversion_FromV1ToV2(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(hostsAndPorts(t))
	_, err := c.objects(crd, "v1").Create(c.ctx, object(crd, "v1", "a", map[string]any{"hostPort": "host1:80"}),
		metav1.CreateOptions{})
	require.NoError(t, err)
	v2, err := c.objects(crd, "v2").Get(c.ctx, "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "host1", v2.Object["host"])
	require.Equal(t, "80", v2.Object["port"])
	require.NotContains(t, v2.Object, "hostPort")
}

// CustomResourceConversionWebhook should be able to convert a non homogeneous list of CRs
func TestConversion_OfAMixedList(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(hostsAndPorts(t))
	v1, v2 := c.objects(crd, "v1"), c.objects(crd, "v2")
	_, err := v1.Create(c.ctx, object(crd, "v1", "a", map[string]any{"hostPort": "host1:80"}), metav1.CreateOptions{})
	require.NoError(t, err)
	c.storeVersion(crd, "v2")
	_, err = v2.Create(c.ctx, object(crd, "v2", "b", map[string]any{"host": "host2", "port": "81"}),
		metav1.CreateOptions{})
	require.NoError(t, err)
	list, err := v1.List(c.ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	require.Equal(t, "host1:80", list.Items[0].Object["hostPort"])
	require.Equal(t, "host2:81", list.Items[1].Object["hostPort"])
	list, err = v2.List(c.ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	require.Equal(t, "host1", list.Items[0].Object["host"])
	require.Equal(t, "81", list.Items[1].Object["port"])
}

// storeVersion stores objects in another version from now on.
func (c *cluster) storeVersion(crd *apiextensionsv1.CustomResourceDefinition, name string) {
	c.t.Helper()
	found, err := c.crds().Get(c.ctx, crd.Name, metav1.GetOptions{})
	require.NoError(c.t, err)
	for i := range found.Spec.Versions {
		found.Spec.Versions[i].Storage = found.Spec.Versions[i].Name == name
	}
	_, err = c.crds().Update(c.ctx, found, metav1.UpdateOptions{})
	require.NoError(c.t, err)
	require.Eventually(c.t, func() bool {
		found, err := c.crds().Get(c.ctx, crd.Name, metav1.GetOptions{})
		require.NoError(c.t, err)
		return len(found.Status.StoredVersions) == 2
	}, patience, tick)
}
