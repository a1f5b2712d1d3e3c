//go:build !linux

package etcd

// allocate is a no-op on systems where blocks cannot be allocated ahead of time.
func allocate(string, int64) error { return nil }

// unmap is a no-op on systems that do not list a process's mappings.
func unmap(uint64) {}
