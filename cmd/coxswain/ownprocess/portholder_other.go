//go:build !linux

package ownprocess

// PortHolder returns "": only Linux has files that show which process listens on a port.
func PortHolder(string) string { return "" }
