// Package ownprocess arranges this process with the machine: the pace of its garbage collection, its rank when the
// kernel must kill a process, and the process that holds a port which it needs.
package ownprocess

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// By default, the garbage collector lets the heap grow to twice the live data. Here most live data are documents. They
// have no pointers, so that a collection does not walk them: its cost is to walk the other data. With a small heap and
// a heavy load, the default would collect too often; with a large heap, it would waste as much memory as the live data.
//
// Under load, the heap therefore gets a fixed headroom, independent of its size. If the data with pointers are larger
// than that, as in a process with controllers, a scheduler and nodes that cache tens of thousands of pods, the headroom
// is as large as these data. When idle, half of the live data is enough, because one collection a minute is cheap.
// During the start, Go's default applies. After the start, and after a load, the freed memory is returned to the
// system; the runtime by itself takes minutes to do that.
const (
	headroom = 48 << 20
	// busy is the lowest allocation rate, in bytes per second, that counts as load.
	busy = 16 << 20
	// settled is how long after the start the headroom is set for the first time, and how long after the last
	// collection it is reduced.
	settled = 5 * time.Second
	// resting is how long after the start, and after the last collection under load, memory is returned to the system.
	// It is not returned earlier, since a following load would only request it again.
	resting = 15 * time.Second
)

// PaceCollections sets the headroom after each collection, until the process ends. It does not if GOGC is set.
func PaceCollections() {
	if os.Getenv("GOGC") != "" {
		return
	}
	type dead struct{ _ *dead } // unreachable, so that its cleanup runs after the next collection
	p := &pace{percent: 100, started: time.Now(), rest: time.AfterFunc(resting, giveBack)}
	p.quiet = time.AfterFunc(settled, p.reduce)
	var collected func(struct{})
	collected = func(struct{}) {
		p.collected(time.Now(), heapNow())
		runtime.AddCleanup(&dead{}, collected, struct{}{})
	}
	runtime.AddCleanup(&dead{}, collected, struct{}{})
}

// heap has figures of the last collection, in bytes.
type heap struct {
	time      time.Time
	live      uint64 // reachable data
	walked    uint64 // the part of it that may have pointers
	allocated uint64 // all allocations since the start
}

func heapNow() heap {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/heap:bytes"},
		{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return heap{live: sample[0].Value.Uint64(), walked: sample[1].Value.Uint64(), allocated: sample[2].Value.Uint64()}
}

// pace is the current GC percentage, and the data that it was computed from.
type pace struct {
	started time.Time
	quiet   *time.Timer // calls reduce when there has been no collection for a while
	rest    *time.Timer // calls giveBack when there has been no load for a while

	mu      sync.Mutex // guards percent and last
	percent int
	last    heap
}

// collected sets the percentage after a collection, and restarts the timers.
func (p *pace) collected(now time.Time, h heap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.time = now
	rate := float64(h.allocated-p.last.allocated) / max(now.Sub(p.last.time).Seconds(), 1e-6)
	p.last = h
	if rate >= busy {
		p.rest.Reset(resting)
	}
	if now.Sub(p.started) > settled {
		p.set(paceOf(h, rate))
	}
	p.quiet.Reset(settled)
}

// reduce sets the percentage of an idle process.
func (p *pace) reduce() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(paceOf(p.last, 0))
}

// giveBack collects garbage, and returns free memory and unused pages of the program to the system.
func giveBack() {
	debug.FreeOSMemory()
	unmapProgram()
}

// set sets the percentage if it changes by more than a tenth, since a change stops the world. The caller holds p.mu.
func (p *pace) set(percent int) {
	if percent*10 < p.percent*9 || percent*9 > p.percent*10 {
		p.percent = percent
		debug.SetGCPercent(percent)
	}
}

// paceOf returns the GC percentage for a heap and an allocation rate in bytes per second.
func paceOf(h heap, rate float64) int {
	room, limit := uint64(headroom), 50
	if rate >= busy {
		room, limit = max(headroom, min(h.walked, h.live)), 400
	}
	return min(max(int(room*100/max(h.live, 1)), 25), limit)
}
