//go:build !linux

package storage

// privateByDefault does nothing here: what etcd writes is protected by the modes of its folders.
func privateByDefault(string) {}
