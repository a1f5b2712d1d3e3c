//go:build !linux

package storage

// LockHolder returns "": only Linux lists the processes that hold locks.
func LockHolder(string) string { return "" }
