package pvexpander

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
	"github.com/coxswain-dev/coxswain/controllers/nodelocal"
)

func sized(n string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(n)}
}

// pair returns a claim with 1Gi that requests 2Gi, and its volume.
func pair() (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "c-1",
		ResourceVersion: "7"}}
	c.Spec.VolumeName, c.Spec.Resources.Requests = "v", sized("2Gi")
	c.Status.Phase, c.Status.Capacity = corev1.ClaimBound, sized("1Gi")
	c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimResizing,
		Status: corev1.ConditionTrue}}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v-1", ResourceVersion: "8",
		Annotations: map[string]string{volume.AnnDynamicallyProvisioned: nodelocal.Provisioner}}}
	v.Spec.Capacity, v.Spec.ClaimRef = sized("1Gi"), &corev1.ObjectReference{Namespace: "default", Name: "c", UID: "c-1"}
	return c, v
}

func sizes(t *testing.T, e *fakeenv.Env) (volumeSize, claimSize string) {
	c, err := e.Client().CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "c", metav1.GetOptions{})
	require.NoError(t, err)
	v, err := e.Client().CoreV1().PersistentVolumes().Get(t.Context(), "v", metav1.GetOptions{})
	require.NoError(t, err)
	return storage(v.Spec.Capacity).String(), storage(c.Status.Capacity).String()
}

func TestPVExpander_ExpandsTheVolumeAndThenTheClaim(t *testing.T) {
	t.Parallel()
	c, v := pair()
	e := fakeenv.New(t, c, v)
	e.Start(New)
	volumeSize, claimSize := sizes(t, e)
	require.Equal(t, []string{"2Gi", "2Gi"}, []string{volumeSize, claimSize})
	require.Equal(t, []string{"Normal VolumeResizeSuccessful Resize volume succeeded"}, e.Events())
	after, err := e.Client().CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "c", metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, after.Status.Conditions)
	volumes, claims := e.Writes("patch", "persistentvolumes"), e.Writes("patch", "persistentvolumeclaims")
	require.Len(t, volumes, 1)
	require.Len(t, claims, 1)
	require.Contains(t, string(volumes[0].(clienttesting.PatchAction).GetPatch()), `"resourceVersion":"8","uid":"v-1"`)
	require.Contains(t, string(claims[0].(clienttesting.PatchAction).GetPatch()), `"resourceVersion":"7","uid":"c-1"`)
	require.Equal(t, "status", claims[0].GetSubresource())
}

func TestPVExpander_IgnoresOtherClaims(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)
		event  string
	}{
		"a volume of another driver": {func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
			v.Annotations = nil
		}, "ExternalExpanding"},
		"a volume of an earlier claim of the name": {func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
			v.Spec.ClaimRef.UID = types.UID("c-0")
		}, ""},
		"a volume of no claim": {func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = nil
		}, ""},
		"a claim that is not bound": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Status.Phase = corev1.ClaimPending
		}, ""},
		"a claim that is being deleted": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.DeletionTimestamp = new(metav1.Now())
		}, ""},
		"a claim that has as much": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Spec.Resources.Requests = sized("1024Mi")
		}, ""},
		"a claim that asks for less": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Spec.Resources.Requests = sized("1Mi")
		}, ""},
	} {
		claim, v := pair()
		c.change(claim, v)
		e := fakeenv.New(t, claim, v)
		e.Start(New)
		volumeSize, claimSize := sizes(t, e)
		require.Equal(t, []string{"1Gi", "1Gi"}, []string{volumeSize, claimSize}, name)
		events := strings.Join(e.Events(), "\n")
		require.Contains(t, events, c.event, name)
		require.Equal(t, c.event == "", events == "", name)
	}
}
