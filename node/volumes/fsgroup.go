package volumes

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	corev1 "k8s.io/api/core/v1"
)

func onRootMismatch(pod *corev1.Pod) bool {
	policy := pod.Spec.SecurityContext.FSGroupChangePolicy
	return policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch
}

// Permissions of the fsGroup in its volume, as in the kubelet.
const (
	groupReadsWrites = 0o660
	groupEnters      = 0o110
)

// setGroup gives all files of a volume to a group (fsGroup). With rootDecides (OnRootMismatch) it returns at once if
// the volume's root already has the group and its permissions. No symbolic link is followed.
func setGroup(dir string, gid int, rootDecides bool) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if info, err := root.Lstat("."); err == nil && rootDecides && isGroups(info, gid) {
		return nil
	}
	// The root comes last: OnRootMismatch takes its group as a sign that the work was completed.
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		err = giveToGroup(root, path, gid)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another pod has removed it
		}
		return err
	})
	if err != nil {
		return err
	}
	return giveToGroup(root, ".", gid)
}

func isGroups(info fs.FileInfo, gid int) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	const permissions = groupReadsWrites | groupEnters
	return ok && int(stat.Gid) == gid && info.Mode()&fs.ModeSetgid != 0 && info.Mode().Perm()&permissions == permissions
}

func giveToGroup(root *os.Root, path string, gid int) error {
	info, err := root.Lstat(path)
	if err != nil {
		return err
	}
	if err := root.Lchown(path, -1, gid); err != nil {
		return err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return root.Chmod(path, mode.Perm()|fs.ModeSetgid|groupReadsWrites|groupEnters)
	case mode.IsRegular():
		return root.Chmod(path, mode.Perm()|mode&(fs.ModeSetuid|fs.ModeSetgid)|groupReadsWrites)
	}
	return nil
}
