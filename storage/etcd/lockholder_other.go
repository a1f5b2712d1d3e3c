//go:build !linux

package etcd

// LockHolder returns "": only Linux lists the processes that hold locks.
func LockHolder(string) string { return "" }
