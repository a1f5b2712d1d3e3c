package node

import (
	"io/fs"
	"syscall"
)

// device returns the device number of the file system that a file is on.
func device(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Dev
	}
	return 0
}
