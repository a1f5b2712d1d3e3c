// Package heap postpones the first garbage collection of a process that will usually have ended before
// there is anything worth collecting: the heap may grow to 16 MiB first, four times as much as by
// default. After that, the defaults apply. If GOGC is set, it has precedence.
//
// It is imported for its effect, and imports next to nothing itself: packages are initialized in the order of
// their import paths, so it comes before those of k8s.io, whose types fill the first 4 MiB.
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
	first := new([64]byte) // is gone after the first collection
	runtime.AddCleanup(first, func(percent int) { debug.SetGCPercent(percent) }, 100)
}
