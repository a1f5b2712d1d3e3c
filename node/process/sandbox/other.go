//go:build !linux

package sandbox

// Main does nothing where there are no such processes.
func Main() {}
