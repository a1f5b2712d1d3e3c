package etcd

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// unmap tells the kernel that the pages of a file that is mapped for reading need not stay
// in the process's memory. They stay in the page cache while there is room, from where the
// next read of one has it back: nothing is written, and nobody reads anything else than
// before (madvise(2), MADV_DONTNEED of a shared mapping of a file).
//
// etcd maps all of its database and reads almost none of it again, because reads are served from the
// watch cache; each page that it has written would count as the process's memory until the end. If the
// kernel declines, only memory is lost.
func unmap(inode uint64) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		if from, to, ok := mappingOf(lines.Text(), inode); ok {
			_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, from, to-from, syscall.MADV_DONTNEED)
		}
	}
}

// mappingOf reads a line of proc_pid_maps(5). It is false for all but shared mappings for reading
// of a database with the inode.
func mappingOf(line string, inode uint64) (from, to uintptr, ok bool) {
	if !strings.HasSuffix(line, databaseFile) {
		return 0, 0, false
	}
	var permissions, offset, device string
	var node uint64
	n, err := fmt.Sscanf(line, "%x-%x %s %s %s %d", &from, &to, &permissions, &offset, &device, &node)
	return from, to, err == nil && n == 6 && node == inode && permissions == "r--s"
}
