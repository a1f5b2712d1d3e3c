package load

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// cost is the CPU time and memory of processes.
type cost struct {
	cpu      time.Duration // since their start
	resident int64         // current, in bytes
	// anonymous is the part of resident that is not a mapped file, so that the kernel cannot reclaim it.
	anonymous int64
}

// tick is the unit of CPU time in /proc/PID/stat: 1/100 s on every Linux (USER_HZ).
const tick = 10 * time.Millisecond

// cost returns the sum of the target's processes.
func (t *Target) cost() (cost, error) {
	var sum cost
	for _, pid := range t.Processes {
		c, err := processCost(pid)
		if err != nil {
			return sum, err
		}
		sum.cpu += c.cpu
		sum.resident += c.resident
		sum.anonymous += c.anonymous
	}
	return sum, nil
}

// Used returns the CPU time of the target's processes since their start, and their current memory in bytes.
func (t *Target) Used() (cpu time.Duration, resident int64, err error) {
	c, err := t.cost()
	return c.cpu, c.resident, err
}

// processCost reads /proc/PID/stat, see proc_pid_stat(5).
func processCost(pid int) (cost, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return cost{}, fmt.Errorf("process %d: %w", pid, err)
	}
	c, err := parseStat(string(content))
	if err != nil {
		return c, err
	}
	if content, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err != nil {
		return c, fmt.Errorf("process %d: %w", pid, err)
	}
	c.anonymous, err = parseAnonymous(string(content))
	return c, err
}

// parseAnonymous finds RssAnon in /proc/PID/status, see proc_pid_status(5).
func parseAnonymous(status string) (int64, error) {
	_, rest, _ := strings.Cut(status, "\nRssAnon:")
	line, _, _ := strings.Cut(rest, "\n")
	kibibytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(line, "kB")), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/PID/status: RssAnon: %w", err)
	}
	return kibibytes << 10, nil
}

func parseStat(stat string) (cost, error) {
	// The second field is the name in parentheses, which can contain any characters.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const state, utime, stime, rss = 3, 14, 15, 24 // counted from 1, as in the manual
	if len(fields) <= rss-state {
		return cost{}, fmt.Errorf("unknown form of /proc/PID/stat: %q", stat)
	}
	var n [3]int64
	for i, field := range []int{utime, stime, rss} {
		var err error
		if n[i], err = strconv.ParseInt(fields[field-state], 10, 64); err != nil {
			return cost{}, fmt.Errorf("/proc/PID/stat: %w", err)
		}
	}
	return cost{cpu: time.Duration(n[0]+n[1]) * tick, resident: n[2] * int64(os.Getpagesize())}, nil
}
