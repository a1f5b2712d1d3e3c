package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestStaticPods_AreWhatTheFolderSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(image string) {
		t.Helper()
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: default}\nspec: {containers: [{name: c, image: " + image + "}]}\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(text), 0o600))
	}
	write("one")
	c := startCluster(t, Options{Count: 1, StaticPodPath: dir})
	image := func() string {
		if pod := c.pod("web-node-0"); len(pod.Spec.Containers) > 0 {
			return pod.Spec.Containers[0].Image
		}
		return ""
	}
	c.later(time.Second, "it runs", func() bool { return image() == "one" && c.pod("web-node-0").Status.Phase == corev1.PodRunning })
	mirror := c.pod("web-node-0")
	require.Equal(t, "file", mirror.Annotations[annotationSource])
	require.Equal(t, mirror.Annotations[annotationHash], mirror.Annotations[corev1.MirrorPodAnnotationKey])
	require.Equal(t, "Node", mirror.OwnerReferences[0].Kind)
	write("two")
	c.later(time.Second, "it is made anew", func() bool { return image() == "two" })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "broken.yaml"), []byte("kind: Pod\nnonsense"), 0o600))
	_, err := readStaticPods(dir)
	require.ErrorContains(t, err, "broken.yaml")
	require.NoError(t, os.Remove(filepath.Join(dir, "broken.yaml")))
	require.NoError(t, os.Remove(filepath.Join(dir, "web.yaml")))
	c.later(time.Second, "it is gone", func() bool { return image() == "" })
}
