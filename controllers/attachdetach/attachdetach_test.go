package attachdetach_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestAttachDetach_AttachesVolumesOfScheduledPods(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClockedWith(t, controllers.Settings{}, "persistentvolume-attach-detach-controller", "persistentvolume-binder")
	c.CreateNode("n1", nil)
	c.CreateNode("n2", nil)
	csi := func(driver string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.HostPath, v.Spec.CSI = nil, &corev1.CSIPersistentVolumeSource{Driver: driver,
				VolumeHandle: "h-" + v.Name}
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: v.Name}
		}
	}
	_, err := c.Client.StorageV1().CSIDrivers().Create(c.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "shared.example.com"},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: new(false)},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for name, driver := range map[string]string{"disk": "disk.example.com", "share": "shared.example.com"} {
		c.CreateVolume(name, "1Gi", csi(driver))
		c.CreateClaim(name, "1Gi", nil)
		c.AwaitClaim(name, corev1.ClaimBound, name)
	}
	pod := func(name, node string) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Spec.NodeName, p.Spec.Containers = node, []corev1.Container{{Name: "c", Image: "i"}}
		for _, claim := range []string{"disk", "share"} {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}})
		}
		_, err := c.Client.CoreV1().Pods("default").Create(c.Context(), p, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	attachments := func() []storagev1.VolumeAttachment {
		list, err := c.Client.StorageV1().VolumeAttachments().List(c.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return list.Items
	}
	pod("first", "n1")
	c.Reaches("one attachment", func() bool { return len(attachments()) == 1 })
	a := attachments()[0]
	require.Equal(t, "disk.example.com", a.Spec.Attacher)
	require.Equal(t, "n1", a.Spec.NodeName)
	require.Equal(t, "disk", *a.Spec.Source.PersistentVolumeName)
	a.Status.Attached = true // as its driver would write
	_, err = c.Client.StorageV1().VolumeAttachments().UpdateStatus(c.Context(), &a, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.Reaches("the node is told", func() bool {
		attached := c.Node("n1").Status.VolumesAttached
		return len(attached) == 1 && attached[0].Name == "kubernetes.io/csi/disk.example.com^h-disk"
	})
	c.AwaitEvent("SuccessfulAttachVolume", `AttachVolume.Attach succeeded for volume "disk"`)
	const plugin = "kubernetes.io/csi:disk.example.com"
	c.AwaitMetric(1, "storage_count_attachable_volumes_in_use", "node", "n1", "volume_plugin", plugin)
	for _, state := range []string{"desired_state_of_world", "actual_state_of_world"} {
		c.AwaitMetric(1, "attachdetach_controller_total_volumes", "plugin_name", plugin, "state", state)
	}

	// Only one node may have the volume, and it keeps it as long as it reports the volume in use.
	pod("second", "n2")
	c.AwaitEvent("FailedAttachVolume", `Multi-Attach error for volume "disk"`)
	controllertest.EditStatus(c.Cluster, c.Client.CoreV1().Nodes(), "n1", func(n *corev1.Node) {
		n.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/disk.example.com^h-disk"}
	})
	start := c.Now()
	require.NoError(t, c.Client.CoreV1().Pods("default").Delete(c.Context(), "first", *metav1.NewDeleteOptions(0)))
	c.Passing(time.Second, "it has moved", func() bool {
		all := attachments()
		return len(all) == 1 && all[0].Spec.NodeName == "n2"
	})
	require.GreaterOrEqual(t, c.Since(start), 6*time.Minute)
	c.Reaches("the node has none", func() bool { return len(c.Node("n1").Status.VolumesAttached) == 0 })
	c.AwaitMetric(1, "attach_detach_controller_attachdetach_controller_forced_detaches", "reason", "timeout")
}
