//go:build !linux

package etcd

// allocate does nothing on systems where blocks cannot be allocated ahead of time.
func allocate(string, int64) error { return nil }

// unmap does nothing on systems that do not list a process's mappings.
func unmap(uint64) {}
