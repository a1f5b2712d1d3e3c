package pvbinder_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// cluster adds helpers for volumes to Clocked.
type cluster struct{ *controllertest.Clocked }

func (c cluster) awaitVolume(name string, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
	c.Helper()
	var v *corev1.PersistentVolume
	c.Reaches(fmt.Sprintf("volume %s is %s", name, phase), func() bool {
		v = c.Volume(name)
		return v.Status.Phase == phase
	})
	return v
}

func newVolumes(t *testing.T) cluster {
	t.Parallel()
	return cluster{controllertest.NewClocked(t, 0, "persistentvolume-binder", "pvc-protection", "pv-protection")}
}

func TestVolumes_AClaimGetsTheSmallestMatchingVolume(t *testing.T) {
	c := newVolumes(t)
	block, labels := corev1.PersistentVolumeBlock, map[string]string{"tier": "fast"}
	c.CreateVolume("tiny", "1Gi", nil)
	c.CreateVolume("other-class", "5Gi", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "" })
	c.CreateVolume("block", "5Gi", func(v *corev1.PersistentVolume) { v.Spec.VolumeMode = &block })
	c.CreateVolume("read-only", "5Gi", func(v *corev1.PersistentVolume) {
		v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	})
	c.CreateVolume("fits", "6Gi", nil)
	c.CreateVolume("large", "60Gi", nil)
	c.CreateVolume("fast", "70Gi", func(v *corev1.PersistentVolume) { v.Labels = labels })
	for _, name := range []string{"tiny", "other-class", "block", "read-only", "fits", "large", "fast"} {
		c.awaitVolume(name, corev1.VolumeAvailable)
	}
	c.awaitVolumesSeen()

	c.CreateClaim("a", "5Gi", nil)
	a := c.AwaitClaim("a", corev1.ClaimBound, "fits")
	require.Equal(t, "6Gi", a.Status.Capacity.Storage().String())
	require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, a.Status.AccessModes)
	require.Equal(t, "yes", a.Annotations["pv.kubernetes.io/bind-completed"])
	require.Equal(t, "yes", a.Annotations["pv.kubernetes.io/bound-by-controller"])
	fits := c.awaitVolume("fits", corev1.VolumeBound)
	require.NotNil(t, fits.Status.LastPhaseTransitionTime)
	require.Equal(t, a.UID, fits.Spec.ClaimRef.UID)

	c.CreateClaim("b", "5Gi", func(p *corev1.PersistentVolumeClaim) { p.Spec.VolumeMode = &block })
	c.AwaitClaim("b", corev1.ClaimBound, "block")
	c.CreateClaim("c", "5Gi", func(p *corev1.PersistentVolumeClaim) {
		p.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	})
	c.AwaitClaim("c", corev1.ClaimBound, "fast")
	c.CreateClaim("d", "5Gi", func(p *corev1.PersistentVolumeClaim) { p.Spec.StorageClassName = new("") })
	c.AwaitClaim("d", corev1.ClaimBound, "other-class")
	class := *c.Claim("a").Spec.StorageClassName
	c.AwaitMetric(8, "pv_collector_total_pv_count", "plugin_name", "kubernetes.io/host-path")
	c.AwaitMetric(1, "pv_collector_total_pv_count", "volume_mode", "Block")
	c.AwaitMetric(3, "pv_collector_bound_pv_count", "storage_class", class)
	c.AwaitMetric(3, "pv_collector_unbound_pv_count", "storage_class", class)
	c.AwaitMetric(3, "pv_collector_bound_pvc_count", "namespace", "default", "storage_class", class,
		"volume_attributes_class", "")

	// A claim without a matching volume waits until one is created.
	c.CreateClaim("e", "500Gi", func(p *corev1.PersistentVolumeClaim) { p.Spec.StorageClassName = new("") })
	c.AwaitEvent("FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	require.Equal(t, corev1.ClaimPending, c.Claim("e").Status.Phase)
	c.AwaitMetric(1, "pv_collector_unbound_pvc_count", "namespace", "default", "storage_class", "")
	c.CreateVolume("huge", "1Ti", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "" })
	c.AwaitClaim("e", corev1.ClaimBound, "huge")
}

func TestVolumes_KeepsBindingsOfUsers(t *testing.T) {
	c := newVolumes(t)
	// A volume that names a claim waits for it: no other claim gets the volume.
	c.CreateVolume("reserved", "5Gi", func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "mine"}
	})
	c.awaitVolume("reserved", corev1.VolumeAvailable)
	c.CreateClaim("other", "1Gi", nil)
	c.AwaitEvent("ProvisioningFailed", `storageclass.storage.k8s.io "disks" not found`)
	c.CreateClaim("mine", "1Gi", nil)
	c.AwaitClaim("mine", corev1.ClaimBound, "reserved")
	v := c.awaitVolume("reserved", corev1.VolumeBound)
	require.NotContains(t, v.Annotations, "pv.kubernetes.io/bound-by-controller")
	require.Equal(t, "", c.Claim("other").Spec.VolumeName)

	// A claim may name a volume that does not exist yet.
	c.CreateClaim("early", "1Gi", func(p *corev1.PersistentVolumeClaim) {
		p.Spec.VolumeName, p.Spec.StorageClassName = "late", new("late")
	})
	c.CreateVolume("late", "5Gi", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "late" })
	c.AwaitClaim("early", corev1.ClaimBound, "late")
	require.NotContains(t, c.Claim("early").Annotations, "pv.kubernetes.io/bound-by-controller")

	// A claim does not get a volume that is bound to another claim or is too small.
	c.CreateClaim("thief", "1Gi", func(p *corev1.PersistentVolumeClaim) { p.Spec.VolumeName = "late" })
	c.AwaitEvent("FailedBinding", `volume "late" already bound to a different claim.`)
	c.CreateVolume("small", "1Gi", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "small" })
	c.CreateClaim("greedy", "2Gi", func(p *corev1.PersistentVolumeClaim) {
		p.Spec.VolumeName, p.Spec.StorageClassName = "small", new("small")
	})
	c.AwaitEvent("VolumeMismatch", `Cannot bind to requested volume "small": requested PV is too small`)
	require.Equal(t, corev1.ClaimPending, c.Claim("greedy").Status.Phase)
}

func TestVolumes_ReclaimsReleasedVolumesByTheirPolicy(t *testing.T) {
	c := newVolumes(t)
	reclaim := func(p corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy, v.Spec.StorageClassName = p, strings.ToLower(string(p))
		}
	}
	for _, p := range []corev1.PersistentVolumeReclaimPolicy{"Retain", "Delete", "Recycle"} {
		name := strings.ToLower(string(p))
		c.CreateVolume(name, "1Gi", reclaim(p))
		c.CreateClaim(name, "1Gi", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = &name })
		c.AwaitClaim(name, corev1.ClaimBound, name)
		c.DropClaim(name)
	}
	c.awaitVolume("retain", corev1.VolumeReleased)
	c.awaitVolume("delete", corev1.VolumeFailed)
	c.awaitVolume("recycle", corev1.VolumeFailed)
	c.AwaitEvent("VolumeFailedDelete", "no deletable volume plugin matched")
	c.AwaitEvent("VolumeFailedRecycle", "No recycler plugin found for the volume!")

	// A new claim of the same name does not get the data of the old one.
	c.CreateClaim("retain", "1Gi", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = new("retain") })
	c.AwaitEvent("ProvisioningFailed", `"retain" not found`)
	c.Reaches("the volume stays released", func() bool { return c.Volume("retain").Status.Phase == corev1.VolumeReleased })
	// It does so only after the administrator has removed the reference.
	c.EditVolume("retain", func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil })
	c.AwaitClaim("retain", corev1.ClaimBound, "retain")
}

func TestVolumes_AClaimThatLosesItsVolumeIsLost(t *testing.T) {
	c := newVolumes(t)
	c.CreateVolume("disk", "1Gi", nil)
	c.CreateClaim("data", "1Gi", nil)
	c.AwaitClaim("data", corev1.ClaimBound, "disk")
	require.NoError(t, c.Client.CoreV1().PersistentVolumes().Delete(c.Context(), "disk", metav1.DeleteOptions{}))
	// A finalizer protects the volume while it is bound. Removing the finalizer loses data.
	c.Reaches("the volume is deleted", func() bool {
		v, err := c.Client.CoreV1().PersistentVolumes().Get(c.Context(), "disk", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true
		}
		require.NoError(c, err)
		v.Finalizers = nil
		_, _ = c.Client.CoreV1().PersistentVolumes().Update(c.Context(), v, metav1.UpdateOptions{})
		return false
	})
	c.AwaitClaim("data", corev1.ClaimLost, "disk")
	c.AwaitEvent("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	c.CreateVolume("disk", "1Gi", nil)
	c.AwaitClaim("data", corev1.ClaimBound, "disk")
}

func TestVolumes_ClaimsGetTheDefaultClassAndWaitForTheirFirstConsumer(t *testing.T) {
	c := newVolumes(t)
	c.CreateVolume("disk", "1Gi", nil)
	c.awaitVolume("disk", corev1.VolumeAvailable)
	c.CreateClaim("data", "1Gi", func(p *corev1.PersistentVolumeClaim) { p.Spec.StorageClassName = nil })
	c.AwaitEvent("FailedBinding", "no storage class is set")
	waits := storagev1.VolumeBindingWaitForFirstConsumer
	c.Faults.RefuseNext(1, http.MethodPut, "persistentvolumeclaims")
	_, err := c.Client.StorageV1().StorageClasses().Create(c.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "disks",
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "example.com/disks", VolumeBindingMode: &waits,
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.Reaches("the claim gets the new default class", func() bool {
		class := c.Claim("data").Spec.StorageClassName
		return class != nil && *class == "disks"
	})
	c.AwaitMetric(2, "retroactive_storageclass_total")
	c.AwaitMetric(1, "retroactive_storageclass_errors_total")
	c.AwaitEvent("WaitForFirstConsumer", "waiting for first consumer to be created before binding")

	// The scheduler selects a node without a volume: the provisioner is asked.
	c.EditVolume("disk", func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "elsewhere", Name: "else"}
	})
	c.awaitVolumesSeen()
	controllertest.Edit(c.Cluster, c.Client.CoreV1().PersistentVolumeClaims("default"), "data",
		func(claim *corev1.PersistentVolumeClaim) {
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "volume.kubernetes.io/selected-node", "node-0")
		})
	c.Reaches("the claim names the provisioner", func() bool {
		return c.Claim("data").Annotations["volume.kubernetes.io/storage-provisioner"] == "example.com/disks"
	})
	c.AwaitEvent("ExternalProvisioning",
		"Waiting for a volume to be created either by the external provisioner 'example.com/disks'")
}

// awaitVolumesSeen waits until the binder has seen the current state of all volumes: it creates another volume and
// waits until the binder has seen that one.
func (c cluster) awaitVolumesSeen() {
	c.CreateVolume("last", "1Gi", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "last" })
	c.awaitVolume("last", corev1.VolumeAvailable)
}
