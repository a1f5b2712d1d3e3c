package process

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Resources returns the resources of this machine. The disk is that of the agent's folder.
func (r *Runtime) Resources() runtime.Resources {
	var found runtime.Resources
	found.Memory = runtime.Supply{Capacity: memInfo("MemTotal"), Available: memInfo("MemAvailable")}
	var disk unix.Statfs_t
	if unix.Statfs(r.dir, &disk) == nil {
		found.Disk = runtime.Supply{Capacity: int64(disk.Blocks) * disk.Bsize,
			Available: int64(disk.Bavail) * disk.Bsize}
		// zero on file systems without a limit on inodes
		found.Inodes = runtime.Supply{Capacity: int64(disk.Files), Available: int64(disk.Ffree)}
	}
	limit, running := min(kernelNumber("pid_max"), kernelNumber("threads-max")), runningTasks()
	if limit > 0 && running > 0 {
		found.PIDs = runtime.Supply{Capacity: limit, Available: limit - running}
	}
	return found
}

func kernelNumber(name string) int64 {
	text, _ := os.ReadFile("/proc/sys/kernel/" + name)
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// runningTasks returns the number of processes and threads: 80 for "0.20 0.18 0.12 1/80 11206" in /proc/loadavg.
func runningTasks() int64 {
	text, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if len(fields) < 4 {
		return 0
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, _ := strconv.ParseInt(all, 10, 64)
	return n
}

// maxCounted limits the files that are counted for a pod: a pod with more of them is large enough to be evicted first.
const maxCounted = 1 << 20

// DiskUse returns the disk usage of a pod: its logs, its containers' files, and its volumes except those in memory.
func (r *Runtime) DiskUse(pod types.UID) (bytes, inodes int64) {
	return folderUse(r.podDir(pod), maxCounted)
}

// LocalStorage implements runtime.Machine.
func (r *Runtime) LocalStorage(pod *corev1.Pod) runtime.LocalStorage {
	s := runtime.LocalStorage{Containers: map[string]int64{}, Volumes: map[string]int64{}}
	dir := r.podDir(pod.UID)
	for _, c := range runtime.Containers(pod) {
		s.Containers[c.Name], _ = folderUse(filepath.Join(dir, "containers", c.Name), maxCounted)
	}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault {
			s.Volumes[v.Name], _ = folderUse(filepath.Join(dir, "volumes", v.Name), maxCounted)
		}
	}
	return s
}

// folderUse returns the disk usage of a folder, and stops counting after about limit files. It follows no symbolic
// links, skips other file systems, and holds only a few names in memory at a time.
func folderUse(top string, limit int64) (bytes, inodes int64) {
	var device uint64
	count := func(info fs.FileInfo) (descend bool) {
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || device != 0 && stat.Dev != device { // another file system, such as one in memory
			return false
		}
		device = stat.Dev
		bytes += stat.Blocks * 512
		inodes++
		return info.IsDir()
	}
	info, err := os.Lstat(top)
	if err != nil || !count(info) {
		return bytes, inodes
	}
	for folders := []string{top}; len(folders) > 0 && inodes < limit; {
		folder := folders[len(folders)-1]
		folders = folders[:len(folders)-1]
		f, err := os.OpenFile(folder, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue // it was removed meanwhile, or its path is too long for the kernel
		}
		for inodes < limit {
			entries, err := f.ReadDir(256)
			for _, e := range entries {
				if info, err := e.Info(); err == nil && count(info) {
					folders = append(folders, filepath.Join(folder, e.Name()))
				}
			}
			if err != nil {
				break
			}
		}
		_ = f.Close()
	}
	return bytes, inodes
}
