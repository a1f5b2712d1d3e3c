package node

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// observe is what this machine has left. The disk is that of the agent's folder.
func (r *processRuntime) observe() map[signal]observation {
	seen := map[signal]observation{}
	if total := memInfo("MemTotal"); total > 0 {
		seen[memoryAvailable] = observation{total, memInfo("MemAvailable")}
	}
	var disk unix.Statfs_t
	if unix.Statfs(r.dir, &disk) == nil {
		seen[nodefsAvailable] = observation{int64(disk.Blocks) * disk.Bsize, int64(disk.Bavail) * disk.Bsize}
		if disk.Files > 0 { // some file systems have as many as they like
			seen[nodefsInodesFree] = observation{int64(disk.Files), int64(disk.Ffree)}
		}
	}
	if most, running := min(kernelNumber("pid_max"), kernelNumber("threads-max")), runningTasks(); most > 0 && running > 0 {
		seen[pidAvailable] = observation{most, most - running}
	}
	return seen
}

func kernelNumber(name string) int64 {
	text, _ := os.ReadFile("/proc/sys/kernel/" + name)
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// runningTasks is how many processes and threads there are: "0.20 0.18 0.12 1/80 11206" in /proc/loadavg is 80.
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

// diskUse is what a pod has written to the disk: its logs, its containers' files, its volumes but those in memory.
func (r *processRuntime) diskUse(pod *corev1.Pod) (bytes, inodes int64) {
	top := r.podDir(pod.UID)
	var device uint64
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it has gone meanwhile
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		switch {
		case !ok:
			return nil
		case path == top:
			device = stat.Dev
		case stat.Dev != device: // a file system in memory
			return fs.SkipDir
		}
		bytes += stat.Blocks * 512
		inodes++
		return nil
	})
	return bytes, inodes
}
