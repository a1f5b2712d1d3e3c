//go:build !linux

package process

// Main does nothing where there are no such processes.
func Main() {}
