package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// conflistName is the name of the configuration, which comes before others for its number: runtimes take the first.
const conflistName = "10-" + NetworkName + ".conflist"

// versions are those of the specification that the configuration offers: the first to runtimes that know of one only,
// such as containerd before 2.0.
var versions = []string{"1.0.0", "1.1.0"}

// Install is what a runtime needs to find the plugin.
type Install struct {
	// ConfDir and BinDir are the runtime's folders, of configurations and of plugins; /etc/cni/net.d and /opt/cni/bin
	// by custom.
	ConfDir, BinDir string
	// Copy has BinDir get a copy of this program rather than a link to it, as it must where the program is in a
	// container.
	Copy bool
	// Chain are the types of other plugins that come after ours.
	Chain []string
	// StateDir is the folder where daemon and plugin meet.
	StateDir string
}

// Plugin installs the plugin.
func (i Install) Plugin() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(i.BinDir, 0o755); err != nil {
		return err
	}
	if err := i.replace(program, filepath.Join(i.BinDir, Plugin)); err != nil {
		return fmt.Errorf("install the plugin: %w", err)
	}
	return i.installLoopback(program, filepath.Join(i.BinDir, Loopback))
}

// isOurs reports whether a file is missing or a link to the program. A copy, be it of ours, stays as it is.
func isOurs(at, program string) (bool, error) {
	info, err := os.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if info.Mode()&os.ModeSymlink != 0 {
		to, err := os.Readlink(at)
		return err == nil && to == program, nil
	}
	return false, nil
}

func (i Install) replace(program, at string) error {
	temporary := at + ".new"
	err := os.Remove(temporary) // a daemon that was killed may have left it
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	switch {
	case err != nil:
	case i.Copy:
		err = copyProgram(program, temporary)
	default:
		err = os.Symlink(program, temporary)
	}
	if err == nil {
		err = os.Rename(temporary, at)
	}
	if err != nil {
		_ = os.Remove(temporary)
	}
	return err
}

func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// Configuration writes the network's configuration, from which on runtimes take their network to be ready.
func (i Install) Configuration() error {
	if err := os.MkdirAll(i.ConfDir, 0o755); err != nil {
		return err
	}
	document, err := json.MarshalIndent(i.conflist(), "", "  ")
	if err != nil {
		return err
	}
	return write(filepath.Join(i.ConfDir, conflistName), append(document, '\n'), 0o644)
}

// conflist is a network configuration list of the specification.
type conflist struct {
	Version  string           `json:"cniVersion"`
	Versions []string         `json:"cniVersions"`
	Name     string           `json:"name"`
	Plugins  []map[string]any `json:"plugins"`
}

func (i Install) conflist() conflist {
	list := conflist{Version: versions[0], Versions: versions, Name: NetworkName,
		Plugins: []map[string]any{{"type": Plugin, "stateDir": i.StateDir}}}
	for _, name := range i.Chain {
		plugin := map[string]any{"type": name}
		if name == "portmap" {
			plugin["capabilities"] = map[string]bool{"portMappings": true}
		}
		list.Plugins = append(list.Plugins, plugin)
	}
	return list
}

// Remove removes the configuration, from which on runtimes take their network not to be ready. The plugin stays, for
// the containers that are to go.
func (i Install) Remove() error {
	err := os.Remove(filepath.Join(i.ConfDir, conflistName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
