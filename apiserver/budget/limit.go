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

// LimitProcess sets the memory limit of Go's runtime a little below the limit of the process's cgroup, unless
// GOMEMLIMIT sets one. Without it, the garbage collector would start too late near the cgroup's limit, and the kernel
// would kill the process.
func LimitProcess() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	cgroup, ok := cgroupLimit(os.DirFS("/"))
	if !ok {
		return
	}
	limit := goLimit(cgroup)
	debug.SetMemoryLimit(limit)
	slog.Debug("set the memory limit from the cgroup", "cgroup", cgroup, "go", limit)
}

// ProcessLimit returns the memory limit of Go's runtime in bytes, 0 if it has none.
func ProcessLimit() int64 {
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		return limit
	}
	return 0
}

// MachineMemory returns the machine's memory in bytes, 0 if it is not known.
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

// goLimit returns the part of a cgroup's bytes that Go's runtime may use: nine tenths of them, less in a small cgroup.
// The cgroup also contains the program's own pages, and the pages of etcd's database that are in use.
func goLimit(cgroup int64) int64 {
	const others = 72 << 20
	return max(cgroup-max(cgroup/10, others), cgroup/2)
}

// cgroupLimit returns the lowest memory limit of the process's cgroup and of all cgroups above it, in bytes. It reads
// cgroups of version 2 and 1.
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
	return least, least < 1<<50 // in version 1 a huge number stands for no limit
}

func hasController(list, name string) bool {
	for c := range strings.SplitSeq(list, ",") {
		if c == name {
			return true
		}
	}
	return false
}

// readLimit reads a file with a number. "max" and a missing file mean no limit.
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
	// minSize is the smallest size of a Budget that follows the process's limit, so that some requests are always
	// served.
	minSize = 16 << 20
	// followEvery is the interval of Follow.
	followEvery = time.Second
)

// Follow keeps the Budget's size at half of the memory that the process's limit leaves to requests, until ctx ends:
// the limit less the live heap of everything else, see othersNow. The other half is for garbage that is not collected
// yet.
func (b *Budget) Follow(ctx context.Context, limit int64) {
	tick := time.NewTicker(followEvery)
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

// othersNow estimates the part of the live heap that does not belong to requests, such as the store. before is the
// last estimate. The estimate rises at once and falls slowly: bytes that requests have charged but not allocated yet
// must not make it fall, and let even more requests in.
func othersNow(before, live, used int64) int64 { return max(live-used, before-before/256) }

// sizeWithin returns the size of a budget within a limit, if the rest of the process takes others.
func sizeWithin(limit, others int64) int64 { return max((limit-max(others, 0))/2, minSize) }

// liveHeap returns the number of bytes that were live at the last garbage collection.
func liveHeap() int64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
