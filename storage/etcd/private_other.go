//go:build !linux

package etcd

// privateByDefault does nothing here: etcd's files are protected by the modes of their folders.
func privateByDefault(string) {}
