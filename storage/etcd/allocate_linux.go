package etcd

import (
	"os"
	"syscall"
)

// keepSize is the flag FALLOC_FL_KEEP_SIZE of fallocate(2).
const keepSize = 1

// allocate allocates the file's blocks up to a size, without making the file longer.
func allocate(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return syscall.Fallocate(int(f.Fd()), keepSize, 0, size)
}
