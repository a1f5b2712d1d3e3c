package volumes

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestVolumes_BelongToTheFSGroup(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root gives files to any group")
	}
	const gid = 60_000
	group := func(path string) int {
		info, err := os.Lstat(path)
		require.NoError(t, err)
		return int(info.Sys().(*syscall.Stat_t).Gid)
	}
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.WriteFile(outside, nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub", "file"), nil, 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link")))
	require.NoError(t, setGroup(dir, gid, false))
	for _, path := range []string{dir, filepath.Join(dir, "sub"), filepath.Join(dir, "sub", "file")} {
		require.Equal(t, gid, group(path), path)
	}
	require.Zero(t, group(outside))
	info, err := os.Stat(filepath.Join(dir, "sub", "file"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o660), info.Mode())
	info, err = os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, fs.ModeSetgid|0o070, info.Mode()&(fs.ModeSetgid|0o070))

	late := filepath.Join(dir, "late")
	require.NoError(t, os.WriteFile(late, nil, 0o600))
	require.NoError(t, os.Chown(late, 0, 0))
	require.NoError(t, setGroup(dir, gid, true))
	require.Zero(t, group(late), "OnRootMismatch looks at the top alone")
	require.NoError(t, setGroup(dir, gid, false))
	require.Equal(t, gid, group(late))

	pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{FSGroup: ptr.To(int64(gid)),
		FSGroupChangePolicy: ptr.To(corev1.FSGroupChangeOnRootMismatch)}}}
	require.True(t, onRootMismatch(pod))
	v, empty := &Volumes{}, filepath.Join(t.TempDir(), "empty")
	require.NoError(t, v.emptyDir(pod, &corev1.EmptyDirVolumeSource{}, empty))
	require.Equal(t, gid, group(empty))
	pod.Spec.SecurityContext = nil
	private := filepath.Join(t.TempDir(), "private")
	require.NoError(t, v.emptyDir(pod, &corev1.EmptyDirVolumeSource{Mode: ptr.To(int32(0o1750))}, private))
	info, err = os.Stat(private)
	require.NoError(t, err)
	require.Equal(t, fs.ModeDir|fs.ModeSticky|0o750, info.Mode())
}
