package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// By default, the garbage collector lets the heap grow to twice the live data. Here most live data are
// documents, which have no pointers and cost a collection nothing. The cost is to walk the rest: often,
// if there is little of it under a heavy load; while twice a large heap is memory without use. Under
// load, the heap therefore gets a fixed headroom, whatever its size, unless the data with pointers are
// larger, as in a process that also has controllers, a scheduler and nodes with tens of thousands of
// pods in their caches: then the headroom is their size. When idle, half of the live data is enough,
// because a collection a minute costs nothing. The start, which is neither, is left to Go. After the
// start, and after a load, the freed memory is returned to the system; the runtime by itself takes
// minutes to do that.
const (
	headroom = 48 << 20
	// busy is the allocation rate, in bytes a second, that counts as load.
	busy = 16 << 20
	// settled is how long after the start the headroom is set first, and how long after the last
	// collection it is reduced.
	settled = 5 * time.Second
	// resting is how long after the start, and after the last collection under load, memory is
	// returned: loads in close succession would only have to request it again.
	resting = 15 * time.Second
)

// paceCollections sets the headroom after each collection, for as long as the process lives. If GOGC is
// set, that is used instead.
func paceCollections() {
	if os.Getenv("GOGC") != "" {
		return
	}
	type dead struct{ _ *dead } // its finalizer runs after the next collection
	p := &pace{percent: 100, started: time.Now(), rest: time.AfterFunc(resting, giveBack)}
	p.quiet = time.AfterFunc(settled, p.settle)
	var collected func(struct{})
	collected = func(struct{}) {
		p.collected(time.Now(), heapNow())
		runtime.AddCleanup(&dead{}, collected, struct{}{})
	}
	runtime.AddCleanup(&dead{}, collected, struct{}{})
}

// heap is the live data after the last collection, the part of it that may have pointers, and all
// allocations so far, in bytes.
type heap struct {
	at                      time.Time
	live, walked, allocated uint64
}

func heapNow() heap {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/heap:bytes"},
		{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return heap{live: sample[0].Value.Uint64(), walked: sample[1].Value.Uint64(), allocated: sample[2].Value.Uint64()}
}

// pace is the present percentage, and the data that it was computed from.
type pace struct {
	started time.Time
	mu      sync.Mutex
	percent int
	last    heap
	quiet   *time.Timer
	rest    *time.Timer
}

func (p *pace) collected(now time.Time, h heap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.at = now
	rate := float64(h.allocated-p.last.allocated) / max(now.Sub(p.last.at).Seconds(), 1e-6)
	p.last = h
	if rate >= busy {
		p.rest.Reset(resting)
	}
	if now.Sub(p.started) > settled {
		p.set(paceOf(h, rate))
	}
	p.quiet.Reset(settled)
}

// settle ends the load.
func (p *pace) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(paceOf(p.last, 0))
}

// giveBack returns garbage, and unused pages of the program, to the system.
func giveBack() {
	debug.FreeOSMemory()
	unmapProgram()
}

// set sets the percentage, if the change is worth stopping the world.
func (p *pace) set(percent int) {
	if percent*10 < p.percent*9 || percent*9 > p.percent*10 {
		p.percent = percent
		debug.SetGCPercent(percent)
	}
}

// paceOf returns the GC percentage for a heap and an allocation rate in bytes a second.
func paceOf(h heap, rate float64) int {
	room, most := uint64(headroom), 50
	if rate >= busy {
		room, most = max(headroom, min(h.walked, h.live)), 400
	}
	return min(max(int(room*100/max(h.live, 1)), 25), most)
}
