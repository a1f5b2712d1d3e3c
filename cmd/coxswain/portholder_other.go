//go:build !linux

package main

// portHolder returns "": only Linux has files that show which process listens on a port.
func portHolder(string) string { return "" }
