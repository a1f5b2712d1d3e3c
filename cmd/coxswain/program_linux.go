package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// unmapProgram tells the kernel that the pages of the program itself need not stay in the process's
// memory. They stay in the page cache, and are mapped again when they are used: only the pages that the
// process works with remain, and not all that its start, or the last load, has used (madvise(2),
// MADV_DONTNEED of a private mapping of a file). If the kernel declines, only memory is lost.
func unmapProgram() {
	program, err := os.Executable()
	if err != nil {
		return
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer smaps.Close()
	var at mapping
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		line := lines.Text()
		if m, ok := mappingOf(line); ok {
			at = m
		} else if at.path == program && !at.writable && line == "Anonymous:             0 kB" {
			// All its pages are the file's. A page that was changed by the dynamic linker or a debugger
			// would be anonymous, and lost.
			_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, at.from, at.to-at.from, syscall.MADV_DONTNEED)
		}
	}
}

// mapping is one of the process's address space.
type mapping struct {
	from, to uintptr
	writable bool
	path     string
}

// mappingOf reads the first line of an entry in proc_pid_smaps(5); it is false for the others.
func mappingOf(line string) (m mapping, ok bool) {
	var permissions, offset, device string
	var inode uint64
	n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %d", &m.from, &m.to, &permissions, &offset, &device, &inode)
	m.writable = strings.Contains(permissions, "w")
	if at := strings.IndexByte(line, '/'); at >= 0 {
		m.path = line[at:]
	}
	return m, n == 6 && m.path != ""
}
