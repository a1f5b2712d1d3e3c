package nodelocal_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// cluster adds helpers for volumes to Clocked.
type cluster struct{ *controllertest.Clocked }

// newFolders starts a control plane without Nodes. Its volumes are below root.
func newFolders(t *testing.T) (c cluster, root string) {
	t.Parallel()
	root = filepath.Join(t.TempDir(), "volumes")
	config := testenv.Start(t, testenv.WithControllers(), testenv.WithNodes(0), testenv.WithoutScheduler())
	c = cluster{controllertest.ClockedAt(t, config, "persistentvolume-binder", "pvc-protection", "pv-protection",
		"node-local")}
	c.Settings.Storage.NodeLocalRoot = root
	c.Restart()
	mode, policy := storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimDelete
	_, err := c.Client.StorageV1().StorageClasses().Create(c.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "disks"}, Provisioner: "coxswain.dev/node-local", VolumeBindingMode: &mode,
		ReclaimPolicy: &policy,
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return c, root
}

// createFilled creates a claim, waits until it is bound, and returns its volume, whose folder contains files.
func (c cluster) createFilled(name string) *corev1.PersistentVolume {
	c.CreateClaim(name, "1Gi", nil)
	var claim *corev1.PersistentVolumeClaim
	c.Passing(time.Second, "bound", func() bool {
		claim = c.Claim(name)
		return claim.Status.Phase == corev1.ClaimBound
	})
	v := c.Volume(claim.Spec.VolumeName)
	require.NoError(c, os.MkdirAll(filepath.Join(v.Spec.HostPath.Path, "deep", "down"), 0o700))
	require.NoError(c, os.WriteFile(filepath.Join(v.Spec.HostPath.Path, "deep", "file"), []byte("data"), 0o400))
	return v
}

func (c cluster) awaitVolumeGone(name string) {
	c.Helper()
	c.Passing(time.Second, "volume "+name+" is gone", func() bool {
		_, err := c.Client.CoreV1().PersistentVolumes().Get(c.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func TestNodeLocal_RemovesTheFolderWithItsVolume(t *testing.T) {
	c, root := newFolders(t)
	stop := c.StartNodes(node.Options{Count: 1, VolumeRoots: []string{root}})
	c.AwaitReadyNodes(1)
	first, second := c.createFilled("first"), c.createFilled("second")
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(first.Spec.HostPath.Path, "link")))

	c.DropClaim("first")
	c.awaitVolumeGone(first.Name)
	require.NoDirExists(t, first.Spec.HostPath.Path)
	require.DirExists(t, second.Spec.HostPath.Path)
	require.FileExists(t, filepath.Join(outside, "precious"), "links are not followed")
	n, err := c.Client.CoreV1().Nodes().Get(c.Context(), "node-0", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotContains(t, n.Annotations, "node-local.coxswain.dev/"+first.Name, "the request is removed")

	// The volume stays while first the agent and then the controllers are stopped.
	stop()
	c.DropClaim("second")
	key := "node-local.coxswain.dev/" + second.Name
	c.Passing(time.Second, "the request is made", func() bool {
		n, err := c.Client.CoreV1().Nodes().Get(c.Context(), "node-0", metav1.GetOptions{})
		require.NoError(t, err)
		return n.Annotations[key] == second.Spec.HostPath.Path
	})
	require.NotNil(t, c.Volume(second.Name).DeletionTimestamp)
	require.DirExists(t, second.Spec.HostPath.Path)
	c.StopControllers()
	c.StartNodes(node.Options{Count: 1, VolumeRoots: []string{root}})
	c.Passing(time.Second, "the restarted agent has answered", func() bool {
		n, err := c.Client.CoreV1().Nodes().Get(c.Context(), "node-0", metav1.GetOptions{})
		require.NoError(t, err)
		return n.Annotations[key] == "removed"
	})
	require.NoDirExists(t, second.Spec.HostPath.Path)
	c.Restart()
	c.awaitVolumeGone(second.Name)
}

func TestNodeLocal_KeepsTheFolderWhereItMust(t *testing.T) {
	c, root := newFolders(t)
	volumes := c.Client.CoreV1().PersistentVolumes()
	c.StartNodes(node.Options{Count: 1, VolumeRoots: []string{root}})
	c.AwaitReadyNodes(1)
	// The folder of a volume with the reclaim policy Retain stays.
	keep := c.createFilled("keep")
	_, err := volumes.Patch(c.Context(), keep.Name, "application/merge-patch+json",
		[]byte(`{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.DropClaim("keep")
	c.Passing(time.Second, "released", func() bool { return c.Volume(keep.Name).Status.Phase == corev1.VolumeReleased })
	require.NoError(t, volumes.Delete(c.Context(), keep.Name, metav1.DeleteOptions{}))
	c.awaitVolumeGone(keep.Name)
	require.DirExists(t, keep.Spec.HostPath.Path)

	// A volume that is deleted before its claim is removed with the claim.
	early := c.createFilled("early")
	require.NoError(t, volumes.Delete(c.Context(), early.Name, metav1.DeleteOptions{}))
	last := c.createFilled("last") // created later: when it is bound, the provisioner has seen the deletion of early
	require.DirExists(t, early.Spec.HostPath.Path)
	c.DropClaim("early")
	c.awaitVolumeGone(early.Name)
	require.NoDirExists(t, early.Spec.HostPath.Path)

	// The agent rejects a folder outside its root, with a message. A Node that was deleted delays no volume.
	elsewhere := c.createFilled("elsewhere")
	moved, err := volumes.Get(c.Context(), elsewhere.Name, metav1.GetOptions{})
	require.NoError(t, err)
	_, err = c.Client.CoreV1().Nodes().Patch(c.Context(), "node-0", "application/merge-patch+json",
		controllertest.JSON(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"node-local.coxswain.dev/" +
			moved.Name: "/etc"}}}), metav1.PatchOptions{})
	require.NoError(t, err)
	c.Passing(time.Second, "refused", func() bool {
		n, err := c.Client.CoreV1().Nodes().Get(c.Context(), "node-0", metav1.GetOptions{})
		require.NoError(t, err)
		return n.Annotations["node-local.coxswain.dev/"+
			moved.Name] == "failed: /etc is not right below --node-local-root ("+root+")"
	})
	require.FileExists(t, "/etc/passwd")
	require.DirExists(t, last.Spec.HostPath.Path)
	c.DropClaim("elsewhere") // the failed request is repeated, with the right path
	c.awaitVolumeGone(moved.Name)
	require.NoDirExists(t, moved.Spec.HostPath.Path)

	require.NoError(t, c.Client.CoreV1().Nodes().Delete(c.Context(), "node-0", metav1.DeleteOptions{}))
	c.DropClaim("last")
	c.awaitVolumeGone(last.Name)
	require.DirExists(t, last.Spec.HostPath.Path)
}

func TestNodeLocal_ReportsUnsupportedClaims(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewClocked(t, 1, "persistentvolume-binder", "node-local")}
	c.Reaches("class", func() bool {
		_, err := c.Client.StorageV1().StorageClasses().Get(c.Context(), "local", metav1.GetOptions{})
		return err == nil
	})
	// With immediate binding the provisioner chooses the node. The class sets the folder.
	mode := storagev1.VolumeBindingImmediate
	_, err := c.Client.StorageV1().StorageClasses().Create(c.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "disks"}, Provisioner: "coxswain.dev/node-local", VolumeBindingMode: &mode,
		Parameters: map[string]string{"path": "/srv"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.CreateClaim("now", "1Gi", nil)
	var claim *corev1.PersistentVolumeClaim
	c.Reaches("bound", func() bool {
		claim = c.Claim("now")
		return claim.Status.Phase == corev1.ClaimBound
	})
	require.True(t, strings.HasPrefix(c.Volume(claim.Spec.VolumeName).Spec.HostPath.Path, "/srv/pvc-"))

	c.CreateClaim("shared", "1Gi", func(p *corev1.PersistentVolumeClaim) {
		p.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	c.AwaitEvent("ProvisioningFailed", "access mode ReadWriteMany")

	// The selected node does not exist: the scheduler can select another one.
	c.CreateClaim("lost", "1Gi", func(p *corev1.PersistentVolumeClaim) {
		p.Spec.StorageClassName = new("local")
		p.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "no-such-node"}
	})
	c.Reaches("the selected node is removed", func() bool {
		return c.Claim("lost").Annotations["volume.kubernetes.io/selected-node"] == ""
	})
	c.AwaitEvent("ProvisioningFailed", `node "no-such-node" not found`)
}
