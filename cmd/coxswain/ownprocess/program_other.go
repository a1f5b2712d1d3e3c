//go:build !linux

package ownprocess

func unmapProgram() {}
