package controllers_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/testenv"
)

// newFolders is a control plane with one Node, whose volumes are below root.
func newFolders(t *testing.T) (c *clocked, root string) {
	t.Parallel()
	root = filepath.Join(t.TempDir(), "volumes")
	config := testenv.Start(t, testenv.WithControllers(), testenv.WithNodes(0), testenv.WithoutScheduler())
	c = newClockedAt(t, config)
	c.names = []string{"persistentvolume-binder", "pvc-protection", "pv-protection", "node-local"}
	c.settings.Storage.NodeLocalRoot = root
	c.restart()
	at, policy := storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimDelete
	_, err := c.client.StorageV1().StorageClasses().Create(c.ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "disks"}, Provisioner: "coxswain.dev/node-local", VolumeBindingMode: &at, ReclaimPolicy: &policy,
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return c, root
}

// filled is a claim that is bound, with its volume, in whose folder there is something.
func (c *clocked) filled(name string) *corev1.PersistentVolume {
	c.claim(name, "1Gi", nil)
	var claim *corev1.PersistentVolumeClaim
	c.passingSeconds("bound", func() bool {
		claim = c.getClaim(name)
		return claim.Status.Phase == corev1.ClaimBound
	})
	v := c.getVolume(claim.Spec.VolumeName)
	require.NoError(c, os.MkdirAll(filepath.Join(v.Spec.HostPath.Path, "deep", "down"), 0o700))
	require.NoError(c, os.WriteFile(filepath.Join(v.Spec.HostPath.Path, "deep", "file"), []byte("data"), 0o400))
	return v
}

func (c *clocked) awaitVolumeGone(name string) {
	c.Helper()
	c.passingSeconds("volume "+name+" is gone", func() bool {
		_, err := c.client.CoreV1().PersistentVolumes().Get(c.ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func TestNodeLocal_TheFolderGoesWithItsVolume(t *testing.T) {
	c, root := newFolders(t)
	stop := c.startNodes(node.Options{Count: 1, VolumeRoots: []string{root}})
	c.awaitReadyNodes(1)
	first, second := c.filled("first"), c.filled("second")
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(first.Spec.HostPath.Path, "link")))

	c.dropClaim("first")
	c.awaitVolumeGone(first.Name)
	require.NoDirExists(t, first.Spec.HostPath.Path)
	require.DirExists(t, second.Spec.HostPath.Path)
	require.FileExists(t, filepath.Join(outside, "precious"), "links are not followed")
	n, err := c.client.CoreV1().Nodes().Get(c.ctx, "node-0", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotContains(t, n.Annotations, "node-local.coxswain.dev/"+first.Name, "nothing is left of the request")

	// While the agent and, then, the controllers are away the volume waits.
	stop()
	c.dropClaim("second")
	key := "node-local.coxswain.dev/" + second.Name
	c.passingSeconds("the agent is asked", func() bool {
		n, err := c.client.CoreV1().Nodes().Get(c.ctx, "node-0", metav1.GetOptions{})
		require.NoError(t, err)
		return n.Annotations[key] == second.Spec.HostPath.Path
	})
	require.NotNil(t, c.getVolume(second.Name).DeletionTimestamp)
	require.DirExists(t, second.Spec.HostPath.Path)
	c.stop()
	c.startNodes(node.Options{Count: 1, VolumeRoots: []string{root}})
	c.passingSeconds("the agent is back", func() bool {
		n, err := c.client.CoreV1().Nodes().Get(c.ctx, "node-0", metav1.GetOptions{})
		require.NoError(t, err)
		return n.Annotations[key] == "removed"
	})
	require.NoDirExists(t, second.Spec.HostPath.Path)
	c.stop = nil
	c.restart()
	c.awaitVolumeGone(second.Name)
}

func TestNodeLocal_TheFolderStaysWhereItShould(t *testing.T) {
	c, root := newFolders(t)
	volumes := c.client.CoreV1().PersistentVolumes()
	c.startNodes(node.Options{Count: 1, VolumeRoots: []string{root}})
	c.awaitReadyNodes(1)
	// Its owner has chosen to keep it.
	kept := c.filled("kept")
	_, err := volumes.Patch(c.ctx, kept.Name, "application/merge-patch+json", []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.dropClaim("kept")
	c.passingSeconds("released", func() bool { return c.getVolume(kept.Name).Status.Phase == corev1.VolumeReleased })
	require.NoError(t, volumes.Delete(c.ctx, kept.Name, metav1.DeleteOptions{}))
	c.awaitVolumeGone(kept.Name)
	require.DirExists(t, kept.Spec.HostPath.Path)

	// A volume that is deleted before its claim goes with it.
	early := c.filled("early")
	require.NoError(t, volumes.Delete(c.ctx, early.Name, metav1.DeleteOptions{}))
	last := c.filled("last") // made after it, and seen by the provisioner after it
	require.DirExists(t, early.Spec.HostPath.Path)
	c.dropClaim("early")
	c.awaitVolumeGone(early.Name)
	require.NoDirExists(t, early.Spec.HostPath.Path)

	// Who has another root refuses, and says so; a Node that is gone holds nobody up.
	elsewhere := c.filled("elsewhere")
	moved, err := volumes.Get(c.ctx, elsewhere.Name, metav1.GetOptions{})
	require.NoError(t, err)
	_, err = c.client.CoreV1().Nodes().Patch(c.ctx, "node-0", "application/merge-patch+json",
		mustJSON(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"node-local.coxswain.dev/" + moved.Name: "/etc"}}}), metav1.PatchOptions{})
	require.NoError(t, err)
	c.passingSeconds("refused", func() bool {
		n, err := c.client.CoreV1().Nodes().Get(c.ctx, "node-0", metav1.GetOptions{})
		require.NoError(t, err)
		return n.Annotations["node-local.coxswain.dev/"+moved.Name] == "failed: /etc is not right below --node-local-root ("+root+")"
	})
	require.FileExists(t, "/etc/passwd")
	require.DirExists(t, last.Spec.HostPath.Path)
	c.dropClaim("elsewhere") // who is told of a failure asks again, with the right path
	c.awaitVolumeGone(moved.Name)
	require.NoDirExists(t, moved.Spec.HostPath.Path)

	require.NoError(t, c.client.CoreV1().Nodes().Delete(c.ctx, "node-0", metav1.DeleteOptions{}))
	c.dropClaim("last")
	c.awaitVolumeGone(last.Name)
	require.DirExists(t, last.Spec.HostPath.Path)
}
