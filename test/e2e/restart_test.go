//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestKill_LosesNothingAcknowledged kills the whole control plane in the middle of a rollout while a client writes as
// fast as it can. After a restart, every acknowledged write exists, and the rollout finishes.
func TestKill_LosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c := up(t, dir)
	c.run(kubectl, "apply", "-f", guestbook)
	c.run(kubectl, "scale", "deployment/guestbook", "--replicas=40")
	c.run(kubectl, "rollout", "status", "deployment/guestbook", "--timeout=60s")

	d, err := c.client.AppsV1().Deployments("default").Get(t.Context(), "guestbook", metav1.GetOptions{})
	require.NoError(t, err)
	before := d.Generation

	writer := c.writeConfigMaps()
	eventually(t, time.Minute, "some writes", func() bool { return writer.count() > 100 })
	watching, err := c.client.AppsV1().Deployments("default").Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer watching.Stop()
	_, err = c.client.AppsV1().Deployments("default").Patch(t.Context(), "guestbook", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"guestbook","image":"guestbook:2"}]}}}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	for event := range watching.ResultChan() {
		d := event.Object.(*appsv1.Deployment)
		if d.Generation > before && d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas > 0 {
			require.Less(t, d.Status.UpdatedReplicas, int32(40), "the rollout was over before it was seen")
			break
		}
	}
	c.server.kill()
	acknowledged := writer.stop()
	require.NotEmpty(t, acknowledged)

	c = up(t, dir)
	c.requireConfigMaps(acknowledged)
	require.Contains(t, c.run(kubectl, "rollout", "status", "deployment/guestbook", "--timeout=60s"),
		"successfully rolled out")
	eventually(t, time.Minute, "the old pods are gone", func() bool {
		list, err := c.client.CoreV1().Pods("default").List(t.Context(),
			metav1.ListOptions{LabelSelector: "app=guestbook"})
		require.NoError(t, err)
		for _, pod := range list.Items {
			if pod.Spec.Containers[0].Image != "guestbook:2" || pod.Status.Phase != corev1.PodRunning {
				return false
			}
		}
		return len(list.Items) == 40
	})
	t.Logf("%d writes were acknowledged before the kill; all are there", len(acknowledged))
}

// TestInterrupt_ShutsDownGracefully ends a busy control plane with Ctrl-C and starts it again.
func TestInterrupt_ShutsDownGracefully(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c := up(t, dir)
	c.run(kubectl, "apply", "-f", guestbook)
	c.run(kubectl, "rollout", "status", "deployment/guestbook", "--timeout=60s")
	writer := c.writeConfigMaps()
	watching, err := c.client.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer watching.Stop()
	eventually(t, time.Minute, "some writes", func() bool { return writer.count() > 20 })

	c.server.interrupt()
	acknowledged := writer.stop()
	require.NotContains(t, c.server.out.String(), "goroutine ", "a dump")
	require.NotContains(t, c.server.out.String(), "panic")

	again := up(t, dir)
	again.requireConfigMaps(acknowledged)
	again.nodesReady(3)
	again.run(kubectl, "rollout", "status", "deployment/guestbook", "--timeout=60s")
	pods := again.run(kubectlLite, "get", "pods", "-l", "app=guestbook", "-o", "name")
	again.server.interrupt()

	idle := up(t, dir, "--nodes", "0")
	require.Equal(t, pods, idle.run(kubectlLite, "get", "pods", "-l", "app=guestbook", "-o", "name"),
		"the pods are as they were")
	idle.server.interrupt()
}

// TestDataDir_BelongsToOneProcessAndOneUser starts a second server on a directory in use.
func TestDataDir_BelongsToOneProcessAndOneUser(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c := up(t, dir)
	for _, command := range []string{"up", "apiserver"} {
		second := start(t, command, "--data-dir", dir, "--secure-port", "0")
		second.waitExit(10 * time.Second)
		require.Error(t, second.err)
		require.Contains(t, second.out.String(), "in use by another coxswain")
		require.Contains(t, second.out.String(), dir)
	}
	code, _ := c.get("/readyz")
	require.Equal(t, 200, code, "the first server still serves")

	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := entry.Info()
		if os.IsNotExist(err) { // etcd renames files during the walk
			return nil
		}
		require.NoError(t, err)
		want := fs.FileMode(0o600)
		if entry.IsDir() {
			want = 0o700
		}
		if info.Mode().IsRegular() || info.IsDir() {
			require.Equal(t, want, info.Mode().Perm(), path)
		} else {
			require.Zero(t, info.Mode().Perm()&0o077, path)
		}
		return nil
	}))
}

func TestUp_ReportsInvalidOptions(t *testing.T) {
	t.Parallel()
	taken := up(t, dataDir(t), "--nodes", "0")
	port := taken.config.Host[strings.LastIndex(taken.config.Host, ":")+1:]
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a port in use":      {[]string{"--secure-port", port}, "is in use by another process"},
		"an unknown flag":    {[]string{"--colour"}, "unknown flag: --colour"},
		"an unknown runtime": {[]string{"--runtime", "magic"}, "--runtime"},
		"too many nodes":     {[]string{"--nodes", "-1"}, "--nodes"},
		"a file as folder":   {[]string{"--data-dir", "/dev/null"}, "--data-dir"},
		"a missing CA":       {[]string{"--client-ca-file", "/nowhere.pem"}, "--client-ca-file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, append([]string{"up", "--secure-port", "0", "--data-dir", dataDir(t)}, c.args...)...)
			p.waitExit(10 * time.Second)
			require.Error(t, p.err)
			require.Contains(t, p.out.String(), c.want)
			require.NotContains(t, p.out.String(), "goroutine ")
		})
	}
}

// writer creates ConfigMaps one after the other and records the acknowledged ones.
type writer struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu           sync.Mutex
	acknowledged map[string]string // name → data
}

// writeConfigMaps writes until stopped, or until the server no longer answers.
func (c *cluster) writeConfigMaps() *writer {
	ctx, cancel := context.WithCancel(c.t.Context())
	w := &writer{cancel: cancel, done: make(chan struct{}), acknowledged: map[string]string{}}
	c.t.Cleanup(func() { w.stop() })
	go func() {
		defer close(w.done)
		for i := 0; ctx.Err() == nil; i++ {
			name, value := fmt.Sprintf("written-%06d", i), fmt.Sprintf("value %d at %d", i, time.Now().UnixNano())
			_, err := c.client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value},
			}, metav1.CreateOptions{})
			if err != nil {
				return
			}
			w.mu.Lock()
			w.acknowledged[name] = value
			w.mu.Unlock()
		}
	}()
	return w
}

func (w *writer) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acknowledged)
}

func (w *writer) stop() map[string]string {
	w.cancel()
	<-w.done
	return w.acknowledged
}

// requireConfigMaps requires that all acknowledged objects exist unchanged.
func (c *cluster) requireConfigMaps(acknowledged map[string]string) {
	c.t.Helper()
	list, err := c.client.CoreV1().ConfigMaps("default").List(c.t.Context(), metav1.ListOptions{})
	require.NoError(c.t, err)
	have := map[string]string{}
	for _, cm := range list.Items {
		have[cm.Name] = cm.Data["value"]
	}
	for name, value := range acknowledged {
		require.Equal(c.t, value, have[name], name)
	}
}
