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

// conflistName is the file name of the configuration. Runtimes take the first file, so its number sorts before others.
const conflistName = "10-" + NetworkName + ".conflist"

// versions are the versions of the specification that the configuration offers. Runtimes that know only cniVersion,
// such as containerd before 2.0, use the first.
var versions = []string{"1.0.0", "1.1.0"}

// Install configures how the plugin is installed for a runtime.
type Install struct {
	// ConfDir and BinDir are the runtime's folders for configurations and plugins; by custom /etc/cni/net.d and
	// /opt/cni/bin.
	ConfDir, BinDir string
	// Copy installs a copy of this program rather than a link to it. It is needed if the program is in a container.
	Copy bool
	// Chain lists the types of other plugins that run after ours.
	Chain []string
	// StateDir is the folder that daemon and plugin share.
	StateDir string
}

// Plugin installs the plugin, and the plugin "loopback" if the runtime lacks it.
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

// isOurs reports whether a file is missing or a link to the program. A copy does not count, even of this program.
func isOurs(path, program string) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if info.Mode()&os.ModeSymlink != 0 {
		target, err := os.Readlink(path)
		return err == nil && target == program, nil
	}
	return false, nil
}

func (i Install) replace(program, path string) error {
	temporary := path + ".new"
	err := os.Remove(temporary) // a killed daemon may have left it
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
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary)
	}
	return err
}

func copyProgram(from, path string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// Configuration writes the network's configuration. From then on runtimes consider their network ready.
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

// Remove removes the configuration. From then on runtimes consider their network not ready. The plugin stays, so that
// existing containers can be deleted.
func (i Install) Remove() error {
	err := os.Remove(filepath.Join(i.ConfDir, conflistName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
