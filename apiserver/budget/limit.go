package budget

import (
	"bufio"
	"context"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"
)

// LimitProcess gives Go's runtime a memory limit a little below that of the process's cgroup, if GOMEMLIMIT sets none:
// near a limit that it does not know, the garbage collector would wait too long and the kernel kill the process.
func LimitProcess() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	of, ok := cgroupLimit(os.DirFS("/"))
	if !ok {
		return
	}
	limit := goLimit(of)
	debug.SetMemoryLimit(limit)
	slog.Debug("memory limit from the cgroup", "cgroup", of, "go", limit)
}

// ProcessLimit is the memory limit of Go's runtime in bytes, 0 if it has none.
func ProcessLimit() int64 {
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		return limit
	}
	return 0
}

// MachineMemory is how many bytes of memory the machine has, 0 if that is not known.
func MachineMemory() int64 { return machineMemory(os.DirFS("/")) }

func machineMemory(root fs.FS) int64 {
	content, _ := fs.ReadFile(root, "proc/meminfo") // Linux has it
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// goLimit is what Go's runtime may use of a cgroup's bytes: nine tenths of them, less in a small cgroup. The program's
// own pages, and those of etcd's database that are being used, are counted as the cgroup's too.
func goLimit(cgroup int64) int64 {
	const others = 72 << 20
	return max(cgroup-max(cgroup/10, others), cgroup/2)
}

// cgroupLimit is the least memory limit of the process's cgroup and of those above it, in bytes, of version 2 or 1.
func cgroupLimit(root fs.FS) (int64, bool) {
	own, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	least := int64(math.MaxInt64)
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy, controllers, path
		if len(parts) < 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		if hasController(parts[1], "memory") {
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if parts[1] != "" {
			continue
		}
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			least = min(least, readLimit(root, path.Join(mount, dir, file)))
			if dir == "/" {
				break
			}
		}
	}
	return least, least < 1<<50 // version 1 says "no limit" with a huge number
}

func hasController(list, name string) bool {
	for c := range strings.SplitSeq(list, ",") {
		if c == name {
			return true
		}
	}
	return false
}

// readLimit reads a file with a number; "max", like a file that is not there, is no limit.
func readLimit(root fs.FS, name string) int64 {
	file, err := root.Open(name)
	if err != nil {
		return math.MaxInt64
	}
	defer file.Close()
	line, _ := bufio.NewReader(file).ReadString('\n')
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil || n <= 0 {
		return math.MaxInt64
	}
	return n
}

const (
	// least is what requests get however full the process is, so that some are always served.
	least = 16 << 20
	// measured is how often Follow looks.
	measured = time.Second
)

// Follow keeps the Budget's size at a half of what the process's limit leaves beside the live heap, until ctx ends. The
// other half is for what is free and not yet collected.
func (b *Budget) Follow(ctx context.Context, limit int64) {
	tick := time.NewTicker(measured)
	defer tick.Stop()
	for others := int64(0); ; {
		others = othersNow(others, liveHeap(), b.Used())
		b.Resize(sizeWithin(limit, others))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// othersNow estimates what is no request's of a live heap, from what it was estimated at before. It falls slowly: bytes
// that requests have taken, and are yet to allocate, must not make it fall and let even more requests in.
func othersNow(before, live, used int64) int64 { return max(live-used, before-before/256) }

// sizeWithin is the size of a budget within a limit when what is no request's takes so much.
func sizeWithin(limit, others int64) int64 { return max((limit-max(others, 0))/2, least) }

// liveHeap is what the last garbage collection has found in use.
func liveHeap() int64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
