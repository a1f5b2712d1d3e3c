//go:build linux && !amd64 && !arm64

package sandbox

// nativeArch is 0: there is no profile for this architecture.
const nativeArch = 0

var nativeDenied []uintptr
