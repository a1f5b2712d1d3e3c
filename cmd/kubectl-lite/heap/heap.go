// Package heap postpones the first garbage collection, since most runs end before a collection would pay off: the heap
// can grow to 16 MiB first, four times the default. After that, the defaults apply. GOGC, if set, has precedence.
//
// The package is imported for its side effect, and imports almost no other packages. Packages are initialized in the
// order of their import paths, so that it runs before the packages of k8s.io, whose types fill the first 4 MiB.
package heap

import (
	"os"
	"runtime"
	"runtime/debug"
)

func init() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(400)
	first := new([64]byte) // unreachable, so that its cleanup runs after the first collection
	runtime.AddCleanup(first, func(percent int) { debug.SetGCPercent(percent) }, 100)
}
