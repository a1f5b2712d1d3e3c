package ownprocess

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// unmapProgram unmaps the pages of the program itself from the process's memory. They stay in the page cache and are
// mapped again on use, so that only the pages that the process works with remain, not all that its start or the last
// load used. See MADV_DONTNEED in madvise(2) for a private mapping of a file. If the kernel refuses, the process only
// uses more memory.
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
	var current mapping
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		line := lines.Text()
		if m, ok := mappingOf(line); ok {
			current = m
		} else if current.path == program && !current.writable && line == "Anonymous:             0 kB" {
			// All pages of the mapping are the file's. A page that the dynamic linker or a debugger has changed is
			// anonymous, and unmapping it would lose the change.
			_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, current.from, current.to-current.from, syscall.MADV_DONTNEED)
		}
	}
}

// mapping is a mapping in the process's address space.
type mapping struct {
	from, to uintptr
	writable bool
	path     string
}

// mappingOf parses the first line of an entry in proc_pid_smaps(5). It returns false for other lines, and for mappings
// without a file.
func mappingOf(line string) (m mapping, ok bool) {
	var permissions, offset, device string
	var inode uint64
	n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %d", &m.from, &m.to, &permissions, &offset, &device, &inode)
	m.writable = strings.Contains(permissions, "w")
	if i := strings.IndexByte(line, '/'); i >= 0 {
		m.path = line[i:]
	}
	return m, n == 6 && m.path != ""
}
