//go:build linux && !amd64 && !arm64

package sandbox

// nativeArch is none: there is no profile.
const nativeArch = 0

var nativeDenied []uintptr
