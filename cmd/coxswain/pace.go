package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// The garbage collector by default lets the heap become twice as large as what lives in it.
// Here most of what lives are documents, which have no pointers and cost a collection nothing;
// what it costs is to walk the rest, often where there is little and work is heavy, while twice
// a large heap is memory that nobody uses. Under load the heap therefore gets the same headroom
// whatever lives in it, unless what must be walked is more than that, as in a process that also has
// controllers, a scheduler and nodes with tens of thousands of pods in their caches: then as much as
// that. With little to do half of what lives is enough, for a collection a minute
// costs nothing. The start, which is neither, is left to Go. When the start, or a load, is over, the memory that it has
// left behind goes back to the system; the runtime by itself takes minutes to do that.
const (
	headroom = 48 << 20
	// busy is the rate, in bytes a second, from which on there is load.
	busy = 16 << 20
	// settled is how long after the start there is any headroom, and how long after the last
	// collection it is taken back.
	settled = 5 * time.Second
	// resting is how long after the start, and after the last collection under load, memory goes back: loads
	// that follow each other closely would only have to ask for it again.
	resting = 15 * time.Second
)

// paceCollections sets the headroom anew after each collection, for as long as the process lives. Who sets
// GOGC has it as he wants it.
func paceCollections() {
	if os.Getenv("GOGC") != "" {
		return
	}
	type dead struct{ _ *dead } // the next collection finds it, and says so
	p := &pace{percent: 100, started: time.Now(), rest: time.AfterFunc(resting, giveBack)}
	p.quiet = time.AfterFunc(settled, p.settle)
	var collected func(struct{})
	collected = func(struct{}) {
		p.collected(time.Now(), heapNow())
		runtime.AddCleanup(&dead{}, collected, struct{}{})
	}
	runtime.AddCleanup(&dead{}, collected, struct{}{})
}

// heap is what the last collection found alive, what of it may have pointers, and all that was ever allocated, in bytes.
type heap struct {
	at                      time.Time
	live, walked, allocated uint64
}

func heapNow() heap {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/heap:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return heap{live: sample[0].Value.Uint64(), walked: sample[1].Value.Uint64(), allocated: sample[2].Value.Uint64()}
}

// pace is the percentage that holds, and from what it came.
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

// giveBack returns garbage, and what of the program is not used, to the system.
func giveBack() {
	debug.FreeOSMemory()
	unmapProgram()
}

// set sets the percentage, if it is worth it: that stops the world.
func (p *pace) set(percent int) {
	if percent*10 < p.percent*9 || percent*9 > p.percent*10 {
		p.percent = percent
		debug.SetGCPercent(percent)
	}
}

// paceOf is the GC percentage for such a heap, into which so many bytes are allocated a second.
func paceOf(h heap, rate float64) int {
	room, most := uint64(headroom), 50
	if rate >= busy {
		room, most = max(headroom, min(h.walked, h.live)), 400
	}
	return min(max(int(room*100/max(h.live, 1)), 25), most)
}
