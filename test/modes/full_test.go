//go:build e2e && linux

package modes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// smallDisk mounts a disk of so many MiB, and returns a data directory on it.
func smallDisk(t *testing.T, mebibytes int) (dir string) {
	t.Helper()
	needRoot(t, "mounting a small disk")
	disk := t.TempDir()
	options := fmt.Sprintf("size=%dm,mode=0700", mebibytes)
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, options); err != nil {
		t.Skip("SKIPPED: no small disk can be mounted here: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	return filepath.Join(disk, "data")
}

// fill takes all the space there is on the disk of a data directory, until the file is removed.
func fill(t *testing.T, dir string) (file string) {
	t.Helper()
	file = filepath.Join(filepath.Dir(dir), "filler")
	f, err := os.Create(file)
	require.NoError(t, err)
	defer f.Close()
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	return file
}

// create creates a ConfigMap of so many bytes.
func (c *cluster) create(name string, size int) error {
	_, err := c.client.CoreV1().ConfigMaps("default").Create(c.t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"x": strings.Repeat("x", size)},
	}, metav1.CreateOptions{})
	return err
}

// isFull waits until a write is refused for lack of space.
func (c *cluster) isFull() {
	c.t.Helper()
	eventually(c.t, "writes are refused", func() bool {
		err := c.create("refused", 1)
		if err == nil {
			require.NoError(c.t, c.client.CoreV1().ConfigMaps("default").Delete(c.t.Context(), "refused",
				metav1.DeleteOptions{}))
			return false
		}
		require.ErrorContains(c.t, err, "etcd is out of space")
		return true
	})
}

// hasRoom waits until a write is accepted.
func (c *cluster) hasRoom() {
	c.t.Helper()
	eventually(c.t, "writes are accepted", func() bool { return c.create("accepted", 1) == nil })
	require.NoError(c.t, c.client.CoreV1().ConfigMaps("default").Delete(c.t.Context(), "accepted",
		metav1.DeleteOptions{}))
}

// runsPods runs a Deployment in a namespace of its own.
func (c *cluster) runsPods(namespace string, replicas int) {
	c.t.Helper()
	c.kubectl("default", "create", "namespace", namespace)
	c.kubectl(namespace, "apply", "-f", "testdata/web.yaml")
	c.kubectl(namespace, "scale", "deployment/web", fmt.Sprint("--replicas=", replicas))
	c.awaitDeployment(namespace, "web", int64(replicas))
}

// fullDisk lets another program fill the disk. Objects, pods and namespaces can be deleted all the same.
func fullDisk(t *testing.T) {
	dir := smallDisk(t, 192)
	c := up(t, launch{}, dir)
	c.nodesReady()
	c.runsPods("first", 10)
	for i := range 1200 { // more than are deleted between two of etcd's snapshots
		require.NoError(t, c.create(fmt.Sprint("small-", i), 1))
	}
	filler := fill(t, dir)
	c.isFull()
	require.NoError(t, c.client.CoreV1().ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"}))
	c.kubectl("first", "delete", "deployment/web", "--cascade=foreground")
	c.awaitGone(pods, "first")
	c.kubectl("default", "delete", "namespace", "first")
	require.NoError(t, os.Remove(filler))
	c.hasRoom()

	c.runsPods("again", 20)
	c.kubectl("again", "delete", "pods", "--all", "--wait=false", "--grace-period=2")
	filler = fill(t, dir)
	c.isFull()
	c.kubectl("default", "delete", "namespace", "again")
	require.NoError(t, os.Remove(filler))
	c.hasRoom()
	c.lives()
}

// selfFilledDisk fills the disk with objects. Once they are deleted there is room again. Watches need not resume after
// the restart: as long as the disk is nearly full, the server drops history to save space.
func selfFilledDisk(t *testing.T) {
	c := up(t, launch{}, smallDisk(t, 128))
	var err error
	made := 0
	for ; err == nil && made < 500; made++ {
		err = c.create(fmt.Sprint("large-", made), 900_000)
	}
	require.ErrorContains(t, err, "etcd is out of space")
	require.NoError(t, c.client.CoreV1().ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"}))
	c.hasRoom()
	c.smoke("smoke")
	c.server.kill()
	c.server = c.again()
	c.smoke("again")
}

// fullQuota fills an external etcd up to its quota: it takes deletions only, and no mark of a graceful one.
func fullQuota(t *testing.T) {
	e := etcd(t, "http://127.0.0.1:"+freePort(t, "127.0.0.1"), "--quota-backend-bytes", "8388608")
	c := e.apiserver(dataDir(t))
	c.components(nil)
	c.nodesReady()
	c.runsPods("running", 5)
	made := 0
	for c.create(fmt.Sprint("large-", made), 900_000) == nil {
		made++
	}
	c.isFull()
	deleted := c.kubectl("running", "delete", "pods", "--all", "--grace-period=300")
	require.Contains(t, deleted, "deleted at once, without a grace period")
	require.NoError(t, c.client.CoreV1().ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"}))
	room := launch{}.start(t, append([]string{"etcd", "make-room"}, e.flags...)...)
	<-room.exited
	require.Zero(t, room.cmd.ProcessState.ExitCode(), room.out.String())
	c.hasRoom()
	c.awaitDeployment("running", "web", 5)
	c.lives()
}
