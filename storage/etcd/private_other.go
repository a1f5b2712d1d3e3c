//go:build !linux

package etcd

// privateByDefault is a no-op: the modes of the folders protect etcd's files.
func privateByDefault(string) {}
