//go:build linux

package sandbox

import "golang.org/x/sys/unix"

const nativeArch = unix.AUDIT_ARCH_AARCH64

// nativeDenied are denied calls that other architectures do not have.
var nativeDenied []uintptr
