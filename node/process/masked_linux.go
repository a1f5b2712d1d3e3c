package process

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Agents of one machine hide each other's folders and credentials from their containers. Each agent writes a file with
// the paths that it hides into a folder that all agents share, and reads the others' files whenever it starts a
// container.

// Limits on the shared folder, which only root can write to.
const (
	maxAgents     = 256
	maxMaskedFile = 64 << 10
)

// register writes the paths that this agent hides, and removes the files of agents whose folders no longer exist.
func (r *Runtime) register() error {
	if r.Agents == "" {
		return nil
	}
	if err := os.MkdirAll(r.Agents, 0o700); err != nil {
		return err
	}
	if err := ownFolder(r.Agents); err != nil {
		return err
	}
	entries, err := os.ReadDir(r.Agents)
	if err != nil {
		return err
	}
	for _, e := range entries[:min(len(entries), maxAgents)] {
		path := filepath.Join(r.Agents, e.Name())
		if !slices.ContainsFunc(readMasked(path), exists) {
			_ = os.Remove(path)
		}
	}
	note, err := json.Marshal(r.hide)
	if err != nil {
		return err
	}
	path := maskedFile(r.Agents, r.dir)
	if err := os.WriteFile(path+".new", note, 0o600); err != nil {
		return fmt.Errorf("write paths that other agents of this machine must hide: %w", err)
	}
	return os.Rename(path+".new", path)
}

// maskedFile returns the file of the agent with the folder dir.
func maskedFile(agents, dir string) string {
	return filepath.Join(agents, runtime.Digest(dir)[:12]+".json")
}

// ownFolder returns an error for a folder that other users may write to: they could redirect this user's files.
func ownFolder(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a folder that is written by this user alone", path)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// maskedPaths returns the paths that no container of this agent may see: its own, those of the machine's other agents,
// and the volumes in memory of all of them.
func (r *Runtime) maskedPaths() []string {
	all := append(slices.Clone(r.hide), memoryRoot)
	if r.Agents == "" {
		return all
	}
	all = append(all, r.Agents)
	if ownFolder(r.Agents) != nil {
		return all
	}
	entries, _ := os.ReadDir(r.Agents)
	for _, e := range entries[:min(len(entries), maxAgents)] {
		all = append(all, readMasked(filepath.Join(r.Agents, e.Name()))...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func readMasked(path string) (paths []string) {
	text, err := readContainerFile(path, maxMaskedFile)
	if err == nil && json.Unmarshal(text, &paths) != nil {
		return nil
	}
	return paths
}
