package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/testenv/fakeclient"
)

func TestReclaim_AnswersExistingRequestsOnly(t *testing.T) {
	t.Parallel()
	const key = annotationFolder + "pvc-0a1b"
	asking := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u",
		Annotations: map[string]string{key: "/volumes/pvc-0a1b_default_data"}}}
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   map[string]string
	}{
		"as the cache shows it":           {func(*corev1.Node) {}, map[string]string{key: folderRemoved}},
		"its first answer was taken away": {func(n *corev1.Node) { n.Annotations = nil }, nil},
		"another was made": {func(n *corev1.Node) {
			n.Annotations[key] = "/else"
		}, map[string]string{key: "/else"}},
		"it is another Node's of that name": {func(n *corev1.Node) { n.UID = "v" }, asking.Annotations},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			live := asking.DeepCopy()
			c.change(live)
			n := &hostedNode{name: "n", link: &link{client: fakeclient.New(live)}}
			// the fake API has no status for a test that fails
			_ = (&agent{Options: Options{Runtime: Simulated}}).reclaimFolders(t.Context(), n, asking)
			got, err := n.client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, c.want, got.Annotations)
		})
	}
}

func TestReclaim_RemovesOnlyTheVolumesFolder(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	root, other := filepath.Join(base, "volumes"), filepath.Join(base, "other")
	const volume, name = "pvc-0a1b", "pvc-0a1b_default_data"
	outside := filepath.Join(base, "outside")
	for _, dir := range []string{filepath.Join(root, name, "deep"), filepath.Join(root, "pvc-0a1bc_default_data"),
		filepath.Join(root, "keep"), other, outside} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(outside, "file"), nil, 0o644))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, name, "link")))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "pvc-link_default_data")))
	require.NoError(t, os.Symlink(outside, filepath.Join(base, "elsewhere")))
	a := &agent{Options: Options{VolumeRoots: []string{root + "/"}, Runtime: Process,
		Log: slog.New(slog.DiscardHandler)}}

	for path, volume := range map[string]string{
		"/etc":                                  volume,
		root:                                    volume,
		other + "/" + name:                      volume,
		root + "/../volumes/" + name:            volume,
		root + "/" + name + "/../keep":          volume,
		root + "/" + name + "/deep":             volume,
		root + "/" + name + "/":                 volume,
		"volumes/" + name:                       volume,
		root + "/pvc-0a1bc_default_data":        volume, // another volume's
		root + "/keep":                          "keep",
		root + "/keep_":                         "keep",
		"":                                      volume,
		base + "/elsewhere/" + name:             volume,
		root + "/pvc-link_default_data/" + name: volume,
		root + "/" + volume:                     volume,
		root + "/" + name + string([]byte{0}) + "/../": volume,
	} {
		require.Error(t, a.removeFolder(volume, path), path)
	}
	require.DirExists(t, filepath.Join(root, name, "deep"))

	require.NoError(t, a.removeFolder(volume, filepath.Join(root, name)))
	require.NoDirExists(t, filepath.Join(root, name))
	require.NoError(t, a.removeFolder(volume, filepath.Join(root, name)), "what is gone is removed")
	require.NoError(t, a.removeFolder("pvc-link", filepath.Join(root, "pvc-link_default_data")),
		"a link in its place goes")
	require.FileExists(t, filepath.Join(outside, "file"), "and what it pointed to stays")
	require.DirExists(t, filepath.Join(root, "pvc-0a1bc_default_data"))
	require.DirExists(t, filepath.Join(root, "keep"))

	gone := &agent{Options: Options{VolumeRoots: []string{filepath.Join(base, "never")}}}
	require.NoError(t, gone.removeFolder(volume, filepath.Join(base, "never", name)), "where no folder was ever made")
	require.Error(t, (&agent{Options: Options{Runtime: Process}}).removeFolder(volume, filepath.Join(root, name)),
		"who has no root removes nothing")
	require.NoError(t, (&agent{Options: Options{Runtime: Simulated}}).removeFolder(volume, filepath.Join(root, "keep")),
		"who makes no folders is done")
	require.DirExists(t, filepath.Join(root, "keep"))
}
