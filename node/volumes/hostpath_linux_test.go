package volumes

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/process/sandbox"
)

func TestHostPath_RejectsHiddenPaths(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	data := filepath.Join(top, "data")
	require.NoError(t, os.MkdirAll(filepath.Join(data, "volumes", "pvc-1"), 0o700))
	require.NoError(t, os.Symlink(data, filepath.Join(top, "link")))
	require.NoError(t, os.Symlink(filepath.Join(data, "made"), filepath.Join(top, "dangling")))
	v := &Volumes{Visible: func(path string) error { return sandbox.Visible(path, []string{data}) }}
	check := func(path string, kind corev1.HostPathType) error {
		return v.hostPath(&corev1.HostPathVolumeSource{Path: path, Type: &kind})
	}
	for _, path := range []string{data, filepath.Join(data, "no"), filepath.Join(top, "link", "no"),
		filepath.Join(top, "x", "..", "data", "no")} {
		for _, kind := range []corev1.HostPathType{"", corev1.HostPathDirectoryOrCreate, corev1.HostPathFileOrCreate,
			corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathBlockDev} {
			require.ErrorContains(t, check(path, kind), "containers do not see", "%s %s", path, kind)
		}
	}
	require.Error(t, check(filepath.Join(top, "dangling"), corev1.HostPathFileOrCreate))
	entries, err := os.ReadDir(data)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is made there")
	require.NoError(t, check(filepath.Join(top, "new", "folder"), corev1.HostPathDirectoryOrCreate))
	require.DirExists(t, filepath.Join(top, "new", "folder"))
	require.NoError(t, check(top, corev1.HostPathDirectory), "a folder above it is shown without it")
}
