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

// cluster has what the tests of this controller need besides.
type cluster struct{ *controllertest.Clocked }

// newFolders is a control plane with one Node, whose volumes are below root.
func newFolders(t *testing.T) (c cluster, root string) {
	t.Parallel()
	root = filepath.Join(t.TempDir(), "volumes")
	config := testenv.Start(t, testenv.WithControllers(), testenv.WithNodes(0), testenv.WithoutScheduler())
	c = cluster{controllertest.ClockedAt(t, config, "persistentvolume-binder", "pvc-protection", "pv-protection",
		"node-local")}
	c.Settings.Storage.NodeLocalRoot = root
	c.Restart()
	at, policy := storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimDelete
	_, err := c.Client.StorageV1().StorageClasses().Create(c.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "disks"}, Provisioner: "coxswain.dev/node-local", VolumeBindingMode: &at,
		ReclaimPolicy: &policy,
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return c, root
}

// filled is a claim that is bound, with its volume, in whose folder there is something.
func (c cluster) filled(name string) *corev1.PersistentVolume {
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

func TestNodeLocal_TheFolderGoesWithItsVolume(t *testing.T) {
	c, root := newFolders(t)
	stop := c.StartNodes(node.Options{Count: 1, VolumeRoots: []string{root}})
	c.AwaitReadyNodes(1)
	first, second := c.filled("first"), c.filled("second")
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
	require.NotContains(t, n.Annotations, "node-local.coxswain.dev/"+first.Name, "nothing is left of the request")

	// While the agent and, then, the controllers are away the volume waits.
	stop()
	c.DropClaim("second")
	key := "node-local.coxswain.dev/" + second.Name
	c.Passing(time.Second, "the agent is asked", func() bool {
		n, err := c.Client.CoreV1().Nodes().Get(c.Context(), "node-0", metav1.GetOptions{})
		require.NoError(t, err)
		return n.Annotations[key] == second.Spec.HostPath.Path
	})
	require.NotNil(t, c.Volume(second.Name).DeletionTimestamp)
	require.DirExists(t, second.Spec.HostPath.Path)
	c.StopControllers()
	c.StartNodes(node.Options{Count: 1, VolumeRoots: []string{root}})
	c.Passing(time.Second, "the agent is back", func() bool {
		n, err := c.Client.CoreV1().Nodes().Get(c.Context(), "node-0", metav1.GetOptions{})
		require.NoError(t, err)
		return n.Annotations[key] == "removed"
	})
	require.NoDirExists(t, second.Spec.HostPath.Path)
	c.Restart()
	c.awaitVolumeGone(second.Name)
}

func TestNodeLocal_TheFolderStaysWhereItShould(t *testing.T) {
	c, root := newFolders(t)
	volumes := c.Client.CoreV1().PersistentVolumes()
	c.StartNodes(node.Options{Count: 1, VolumeRoots: []string{root}})
	c.AwaitReadyNodes(1)
	// Its owner has chosen to keep it.
	kept := c.filled("kept")
	_, err := volumes.Patch(c.Context(), kept.Name, "application/merge-patch+json",
		[]byte(`{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.DropClaim("kept")
	c.Passing(time.Second, "released", func() bool { return c.Volume(kept.Name).Status.Phase == corev1.VolumeReleased })
	require.NoError(t, volumes.Delete(c.Context(), kept.Name, metav1.DeleteOptions{}))
	c.awaitVolumeGone(kept.Name)
	require.DirExists(t, kept.Spec.HostPath.Path)

	// A volume that is deleted before its claim goes with it.
	early := c.filled("early")
	require.NoError(t, volumes.Delete(c.Context(), early.Name, metav1.DeleteOptions{}))
	last := c.filled("last") // made after it, and seen by the provisioner after it
	require.DirExists(t, early.Spec.HostPath.Path)
	c.DropClaim("early")
	c.awaitVolumeGone(early.Name)
	require.NoDirExists(t, early.Spec.HostPath.Path)

	// An agent with another root refuses with a message; a Node that is gone delays nothing.
	elsewhere := c.filled("elsewhere")
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
	c.DropClaim("elsewhere") // after a failure the request is made again, with the right path
	c.awaitVolumeGone(moved.Name)
	require.NoDirExists(t, moved.Spec.HostPath.Path)

	require.NoError(t, c.Client.CoreV1().Nodes().Delete(c.Context(), "node-0", metav1.DeleteOptions{}))
	c.DropClaim("last")
	c.awaitVolumeGone(last.Name)
	require.DirExists(t, last.Spec.HostPath.Path)
}

func TestNodeLocal_TellsWhatAFolderCannotBe(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewClocked(t, 1, "persistentvolume-binder", "node-local")}
	c.Reaches("class", func() bool {
		_, err := c.Client.StorageV1().StorageClasses().Get(c.Context(), "local", metav1.GetOptions{})
		return err == nil
	})
	// Without waiting for a pod, a node is chosen; and its own folder, if the class says so.
	at := storagev1.VolumeBindingImmediate
	_, err := c.Client.StorageV1().StorageClasses().Create(c.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "disks"}, Provisioner: "coxswain.dev/node-local", VolumeBindingMode: &at,
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

	// A node that is gone: the scheduler may choose again.
	c.CreateClaim("lost", "1Gi", func(p *corev1.PersistentVolumeClaim) {
		p.Spec.StorageClassName = new("local")
		p.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "no-such-node"}
	})
	c.Reaches("free to be scheduled again", func() bool {
		return c.Claim("lost").Annotations["volume.kubernetes.io/selected-node"] == ""
	})
	c.AwaitEvent("ProvisioningFailed", `node "no-such-node" not found`)
}
