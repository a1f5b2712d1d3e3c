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

// Agents of one machine hide each other's folders and credentials from their containers. Each writes what it hides into
// a file of a folder that all of them know, and reads the others' whenever it starts a container.

// Bounds of that folder, which root alone writes to.
const (
	maxAgents     = 256
	maxHiddenFile = 64 << 10
)

// register notes what this agent hides, and removes the notes of agents whose folders are gone.
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
		if !slices.ContainsFunc(readHidden(path), exists) {
			_ = os.Remove(path)
		}
	}
	note, err := json.Marshal(r.hide)
	if err != nil {
		return err
	}
	path := hiddenFile(r.Agents, r.dir)
	if err := os.WriteFile(path+".new", note, 0o600); err != nil {
		return fmt.Errorf("tell other agents of this machine what to hide: %w", err)
	}
	return os.Rename(path+".new", path)
}

// hiddenFile is the note of the agent that has a folder.
func hiddenFile(agents, dir string) string {
	return filepath.Join(agents, runtime.Digest(dir)[:12]+".json")
}

// ownFolder refuses a folder that other users may write to: they could lead this one's files elsewhere.
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

// hidden are the paths that no container of this agent may see: its own, and those of the machine's other agents.
func (r *Runtime) hidden() []string {
	all := slices.Clone(r.hide)
	if r.Agents == "" {
		return all
	}
	all = append(all, r.Agents)
	if ownFolder(r.Agents) != nil {
		return all
	}
	entries, _ := os.ReadDir(r.Agents)
	for _, e := range entries[:min(len(entries), maxAgents)] {
		all = append(all, readHidden(filepath.Join(r.Agents, e.Name()))...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func readHidden(path string) (paths []string) {
	text, err := readContainerFile(path, maxHiddenFile)
	if err == nil && json.Unmarshal(text, &paths) != nil {
		return nil
	}
	return paths
}
