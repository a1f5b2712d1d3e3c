package etcd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// LockHolder names the process that holds a lock on a file, to be appended to an error: " (process 17: etcd
// --name a)". It is "" where that cannot be found out, as of a process in another PID namespace.
func LockHolder(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	inode := strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1835 0 EOF
		fields := strings.Fields(line)
		i := slices.IndexFunc(fields, func(field string) bool { return strings.HasSuffix(field, ":"+inode) })
		if i < 1 {
			continue
		}
		pid := fields[i-1]
		if holds(pid, info) {
			return fmt.Sprintf(" (process %s: %s)", pid, command(pid))
		}
	}
	return ""
}

// holds reports whether the process has the file open: inodes of several file systems may have the same number.
func holds(pid string, file os.FileInfo) bool {
	open, err := filepath.Glob("/proc/" + pid + "/fd/*")
	return err == nil && slices.ContainsFunc(open, func(fd string) bool {
		info, err := os.Stat(fd)
		return err == nil && os.SameFile(info, file)
	})
}

// command returns the beginning of a process's command line, long enough to recognize the process.
func command(pid string) string {
	line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
	text := strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
	if text == "" {
		return "unknown"
	}
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return strconv.QuoteToGraphic(text)
}
