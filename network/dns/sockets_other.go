//go:build !linux

package dns

import "syscall"

func reusePort(string, string, syscall.RawConn) error { return nil }
