//go:build !linux

package sandbox

// Main returns at once: this system has no such processes.
func Main() {}
