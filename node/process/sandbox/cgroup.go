package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// cgroups are the hierarchies of this machine: one for everything with v2, one for each controller with v1.
type cgroups struct {
	root        string // /sys/fs/cgroup
	v2          bool
	controllers []string // of v1, those that we use and that are mounted
}

const cgroupRoot = "/sys/fs/cgroup"

// wantedControllers are those that limit or count.
var wantedControllers = []string{"cpu", "cpuacct", "memory", "pids"}

func findCgroups(root string) *cgroups {
	c := &cgroups{root: root}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		c.v2 = true
		return c
	}
	for _, controller := range wantedControllers {
		if _, err := os.Stat(filepath.Join(root, controller, "cgroup.procs")); err == nil {
			c.controllers = append(c.controllers, controller)
		}
	}
	return c
}

// folders are those of a cgroup, one in each hierarchy.
func (c *cgroups) folders(name string) []string {
	if c.v2 {
		return []string{filepath.Join(c.root, name)}
	}
	all := make([]string, len(c.controllers))
	for i, controller := range c.controllers {
		all[i] = filepath.Join(c.root, controller, name)
	}
	return all
}

// create makes a cgroup with its limits.
func (c *cgroups) create(name string, l Limits) error {
	if c.v2 {
		if err := c.delegate(name); err != nil {
			return err
		}
	}
	for _, dir := range c.folders(name) {
		if err := makeFolder(dir); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	for _, s := range c.settings(l) {
		if err := c.set(name, s); err != nil && l.bind() {
			return err
		}
	}
	if l.PodPIDs > 0 {
		limit := setting{"pids", "pids.max", strconv.FormatInt(l.PodPIDs, 10), false}
		return c.set(filepath.Dir(name), c.pick(limit, setting{"", limit.file, limit.value, false}))
	}
	return nil
}

// delegate turns the controllers on for a cgroup of v2, in all that it is below.
func (c *cgroups) delegate(name string) error {
	dir := c.root
	for part := range strings.SplitSeq(name, "/") {
		for _, controller := range []string{"cpu", "memory", "pids"} {
			// One that is not there, or that the kernel gives to root alone, limits nothing.
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
		}
		dir = filepath.Join(dir, part)
		if err := makeFolder(dir); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	return nil
}

// makeFolder makes a cgroup, also where another agent takes the empty ones above it away meanwhile.
func makeFolder(dir string) (err error) {
	for range 10 {
		if err = os.MkdirAll(dir, 0o755); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// setting is a value for a file of a cgroup.
type setting struct {
	controller, file, value string
	optional                bool
}

// settings are what the limits are called in this version.
func (c *cgroups) settings(l Limits) []setting {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	var all []setting
	if l.CPUShares > 0 {
		// The two scales go from 2 to 262144 and from 1 to 10000 (KEP-2254).
		weight := 1 + (max(2, l.CPUShares)-2)*9999/262142
		all = append(all, c.pick(setting{"cpu", "cpu.shares", number(max(2, l.CPUShares)), false},
			setting{"", "cpu.weight", number(weight), false}))
	}
	if l.CPUQuota > 0 {
		all = append(all, c.pick(setting{"cpu", "cpu.cfs_quota_us", number(max(1000, l.CPUQuota)), false},
			setting{"", "cpu.max", number(max(1000, l.CPUQuota)) + " 100000", false}))
	}
	if l.MemoryBytes > 0 {
		all = append(all, c.pick(setting{"memory", "memory.limit_in_bytes", number(l.MemoryBytes), false},
			setting{"", "memory.max", number(l.MemoryBytes), false}))
		// Without swap accounting the file is not there, and there is no swap to speak of in most places.
		all = append(all, c.pick(setting{"memory", "memory.memsw.limit_in_bytes", number(l.MemoryBytes), true},
			setting{"", "memory.swap.max", "0", true}))
		// one process too many ends the container, as with the kubelet, rather than leaving it without that
		// one
		if c.v2 {
			all = append(all, setting{"", "memory.oom.group", "1", true})
		}
	}
	if l.MemoryMin > 0 && c.v2 {
		all = append(all, setting{"", "memory.min", number(l.MemoryMin), true})
	}
	return all
}

// resize changes the limits of a cgroup. A cgroup that uses more memory than the new limit keeps its limit.
func (c *cgroups) resize(name string, l Limits) error {
	if _, used, err := c.usage(name); err == nil && l.MemoryBytes > 0 && used > l.MemoryBytes {
		return fmt.Errorf("attempting to set memory limit (%d) below current usage (%d)", l.MemoryBytes, used)
	}
	var err error
	for range 2 { // v1 takes no limit of memory above that of memory and swap, nor that below it
		err = nil
		for _, s := range c.settings(l) {
			err = errors.Join(err, c.set(name, s))
		}
	}
	if !l.bind() {
		return nil
	}
	return err
}

// Group makes the cgroup of a pod, or of several, with its limits, if it is not there, and otherwise sets them.
func Group(name string, l Limits) error {
	if err := findCgroups(cgroupRoot).create(name, l); err != nil && l.bind() {
		return err
	}
	return nil
}

// Resize changes the limits of a container's cgroup while it runs.
func Resize(cgroup string, l Limits) error { return findCgroups(cgroupRoot).resize(cgroup, l) }

func (c *cgroups) pick(v1, v2 setting) setting {
	if c.v2 {
		return v2
	}
	return v1
}

func (c *cgroups) set(name string, s setting) error {
	path := filepath.Join(c.root, s.controller, name, s.file)
	if err := os.WriteFile(path, []byte(s.value), 0o644); err != nil && !s.optional {
		return fmt.Errorf("cgroup: %w", err)
	}
	return nil
}

// enter moves a process into a cgroup.
func (c *cgroups) enter(name string, pid int) error {
	for _, dir := range c.folders(name) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	return nil
}

// oomKills is how many processes of a cgroup were killed for want of memory.
func (c *cgroups) oomKills(name string) int64 {
	if c.v2 {
		return c.field("", name, "memory.events", "oom_kill")
	}
	return c.field("memory", name, "memory.oom_control", "oom_kill")
}

// field is a number in a file of "key value" lines; 0 where there is none.
func (c *cgroups) field(controller, name, file, key string) int64 {
	text, err := os.ReadFile(filepath.Join(c.root, controller, name, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if k, v, _ := strings.Cut(strings.TrimSpace(line), " "); k == key {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}
	return 0
}

func (c *cgroups) number(controller, name, file string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(c.root, controller, name, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// usage is what a cgroup has taken: seconds of CPU since its start, and its working set, as the kubelet counts it.
func (c *cgroups) usage(name string) (cpuSeconds float64, workingSet int64, err error) {
	if c.v2 {
		if workingSet, err = c.number("", name, "memory.current"); err != nil {
			return 0, 0, err
		}
		return float64(c.field("", name, "cpu.stat", "usage_usec")) / 1e6,
			max(0, workingSet-c.field("", name, "memory.stat", "inactive_file")), nil
	}
	ns, err := c.number("cpuacct", name, "cpuacct.usage")
	if err != nil {
		return 0, 0, err
	}
	if workingSet, err = c.number("memory", name, "memory.usage_in_bytes"); err != nil {
		return 0, 0, err
	}
	return float64(ns) / 1e9, max(0, workingSet-c.field("memory", name, "memory.stat", "total_inactive_file")), nil
}

// pids are how many processes and threads a cgroup has, with those below it.
func (c *cgroups) pids(name string) (int64, error) {
	if c.v2 {
		return c.number("", name, "pids.current")
	}
	return c.number("pids", name, "pids.current")
}

// kill ends every process of a cgroup and those below it.
func (c *cgroups) kill(name string) {
	if c.v2 {
		// All at once, so that none can start another meanwhile (Linux 5.14).
		if f, err := os.OpenFile(filepath.Join(c.root, name, "cgroup.kill"), os.O_WRONLY, 0); err == nil {
			_, err = f.WriteString("1")
			if f.Close() == nil && err == nil {
				return
			}
		}
	}
	for _, top := range c.folders(name) {
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil
			}
			pids, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			for line := range strings.Lines(string(pids)) {
				if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 1 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			return nil
		})
	}
}

// RemoveEmpty takes a cgroup away if there is none below it, and the one above it, if then that is empty as well.
func RemoveEmpty(name string) {
	c := findCgroups(cgroupRoot)
	for _, dir := range c.folders(name) {
		if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(filepath.Dir(dir))
		}
	}
}

// RemoveGroup kills what runs in a cgroup and in those below it, and takes them away. Processes that end keep a cgroup
// busy for a moment, which is an error.
func RemoveGroup(name string) error {
	c := findCgroups(cgroupRoot)
	c.kill(name)
	err := c.remove(name)
	RemoveEmpty(name)
	return err
}

// remove takes an empty cgroup away, with those below it. A busy one stays, and is an error.
func (c *cgroups) remove(name string) error {
	var failed error
	for _, top := range c.folders(name) {
		var dirs []string
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			if err := os.Remove(dirs[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = errors.Join(failed, err)
			}
		}
	}
	return failed
}
