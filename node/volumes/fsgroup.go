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

// What a group may do with the files of its volume, as the kubelet has it.
const (
	groupReadsWrites = 0o660
	groupEnters      = 0o110
)

// setGroup gives all of a volume to a group (fsGroup), or nothing where the top is the group's already and that is
// enough. No symbolic link is followed.
func setGroup(dir string, gid int, topDecides bool) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if info, err := root.Lstat("."); err == nil && topDecides && isGroups(info, gid) {
		return nil
	}
	// The top comes last: it says that the work is done.
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
	const wanted = groupReadsWrites | groupEnters
	return ok && int(stat.Gid) == gid && info.Mode()&fs.ModeSetgid != 0 && info.Mode().Perm()&wanted == wanted
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
