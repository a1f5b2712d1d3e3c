package etcd

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// unmap lets the kernel remove the pages of a file that is mapped for reading from the process's memory (madvise(2),
// MADV_DONTNEED for a shared mapping of a file). The pages stay in the page cache while there is room, and the next
// read maps them again. The content of the mapping does not change.
//
// etcd maps its whole database but rarely reads it again, because the watch cache serves reads. Without unmap, each
// page that etcd has written would count as the process's memory until the process ends. If the kernel refuses, the
// only cost is memory.
func unmap(inode uint64) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		if start, end, ok := mappingOf(lines.Text(), inode); ok {
			_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, start, end-start, syscall.MADV_DONTNEED)
		}
	}
}

// mappingOf parses a line of proc_pid_maps(5). ok is false unless the line is a shared read-only mapping of a database
// with this inode.
func mappingOf(line string, inode uint64) (start, end uintptr, ok bool) {
	if !strings.HasSuffix(line, databaseFile) {
		return 0, 0, false
	}
	var permissions, offset, device string
	var node uint64
	n, err := fmt.Sscanf(line, "%x-%x %s %s %s %d", &start, &end, &permissions, &offset, &device, &node)
	return start, end, err == nil && n == 6 && node == inode && permissions == "r--s"
}
