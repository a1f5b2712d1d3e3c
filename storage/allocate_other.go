//go:build !linux

package storage

// allocate does nothing where files cannot be given blocks ahead of time.
func allocate(string, int64) error { return nil }

// unmap does nothing where nobody says which files are mapped.
func unmap(uint64) {}
