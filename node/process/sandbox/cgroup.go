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

// cgroups are the cgroup hierarchies of this machine: a single one with v2, one for each controller with v1.
type cgroups struct {
	root        string // /sys/fs/cgroup
	v2          bool
	controllers []string // v1: the controllers that the package uses and that are mounted
}

const cgroupRoot = "/sys/fs/cgroup"

// wantedControllers are the v1 controllers that limit or count resources.
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

// folders returns the folders of a cgroup, one in each hierarchy.
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

// create makes a cgroup and sets its limits.
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

// delegate enables the controllers for a v2 cgroup, in all cgroups above it.
func (c *cgroups) delegate(name string) error {
	dir := c.root
	for part := range strings.SplitSeq(name, "/") {
		for _, controller := range []string{"cpu", "memory", "pids"} {
			// A controller that does not exist, or that the kernel reserves for the root cgroup, cannot limit anything.
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
		}
		dir = filepath.Join(dir, part)
		if err := makeFolder(dir); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	return nil
}

// makeFolder makes a cgroup. It tries again if another agent removes an empty parent at the same time.
func makeFolder(dir string) (err error) {
	for range 10 {
		if err = os.MkdirAll(dir, 0o755); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// setting is a value for one file of a cgroup.
type setting struct {
	controller, file, value string
	optional                bool
}

// settings returns the limits as files of this cgroup version.
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
		// The file exists only with swap accounting. Without it there usually is no swap.
		all = append(all, c.pick(setting{"memory", "memory.memsw.limit_in_bytes", number(l.MemoryBytes), true},
			setting{"", "memory.swap.max", "0", true}))
		// As with the kubelet, running out of memory ends the whole container instead of one of its processes.
		if c.v2 {
			all = append(all, setting{"", "memory.oom.group", "1", true})
		}
	}
	if l.MemoryMin > 0 && c.v2 {
		all = append(all, setting{"", "memory.min", number(l.MemoryMin), true})
	}
	return all
}

// resize changes the limits of a cgroup. It fails and changes none if more memory is in use than the new limit.
func (c *cgroups) resize(name string, l Limits) error {
	if _, used, err := c.usage(name); err == nil && l.MemoryBytes > 0 && used > l.MemoryBytes {
		return fmt.Errorf("attempting to set memory limit (%d) below current usage (%d)", l.MemoryBytes, used)
	}
	var err error
	for range 2 { // v1 requires memory ≤ memory+swap at each step, so the right order depends on the old limits
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

// Group makes the cgroup of one or several pods, or updates its limits if it exists.
func Group(name string, l Limits) error {
	if err := findCgroups(cgroupRoot).create(name, l); err != nil && l.bind() {
		return err
	}
	return nil
}

// Resize changes the limits of a container's cgroup while the container runs.
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

// oomKills returns the number of processes of a cgroup that the OOM killer has ended.
func (c *cgroups) oomKills(name string) int64 {
	if c.v2 {
		return c.field("", name, "memory.events", "oom_kill")
	}
	return c.field("memory", name, "memory.oom_control", "oom_kill")
}

// field returns a number from a file of "key value" lines; 0 if it is missing.
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

// usage returns the CPU seconds of a cgroup since its creation, and its working set as the kubelet computes it.
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

// pids returns the number of processes and threads in a cgroup and its descendants.
func (c *cgroups) pids(name string) (int64, error) {
	if c.v2 {
		return c.number("", name, "pids.current")
	}
	return c.number("pids", name, "pids.current")
}

// kill ends all processes of a cgroup and its descendants.
func (c *cgroups) kill(name string) {
	if c.v2 {
		// All at once, so that no process can start another one meanwhile (Linux 5.14).
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

// RemoveEmpty removes a cgroup that has no children, and then its parent, if that is empty as well.
func RemoveEmpty(name string) {
	c := findCgroups(cgroupRoot)
	for _, dir := range c.folders(name) {
		if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(filepath.Dir(dir))
		}
	}
}

// RemoveGroup kills all processes of a cgroup and its descendants, and removes them. It returns an error while ending
// processes keep a cgroup busy, which takes a moment.
func RemoveGroup(name string) error {
	c := findCgroups(cgroupRoot)
	c.kill(name)
	err := c.remove(name)
	RemoveEmpty(name)
	return err
}

// remove removes an empty cgroup with its descendants. A busy one stays and causes an error.
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
