package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
)

// componentFiles are the files of the data directory that each component needs, and no others. None
// gets the CAs' keys.
var componentFiles = map[string][]string{
	"etcd": {"pki/etcd/ca.crt", "pki/etcd/server.crt", "pki/etcd/server.key", "pki/etcd/peer.crt", "pki/etcd/peer.key"},
	"apiserver": {"pki/ca.crt", "pki/apiserver.crt", "pki/apiserver.key", "pki/apiserver-kubelet-client.crt",
		"pki/apiserver-kubelet-client.key", "pki/kubelet-serving-ca.crt", "pki/front-proxy-ca.crt",
		"pki/front-proxy-client.crt", "pki/front-proxy-client.key",
		"pki/etcd/ca.crt", "pki/apiserver-etcd-client.crt", "pki/apiserver-etcd-client.key", "pki/sa.key"},
	"controllers": {"controllers.kubeconfig", "pki/ca.crt"},
	"scheduler":   {"scheduler.kubeconfig"},
	"admin":       {"admin.kubeconfig"},
}

// signingFiles are the additional files of controllers that sign certificates and tokens: their holder
// can sign anything.
var signingFiles = []string{"pki/ca.key", "pki/kubelet-serving-ca.crt", "pki/kubelet-serving-ca.key",
	"pki/sa.key"}

// componentFlags set the folder of each component's own files, and the user as which it runs.
type componentFlags struct {
	dir      string
	owners   map[string]string // user IDs, by component
	replicas map[string]int    // by component
	signing  bool
}

// writeComponents copies each component's files to a folder of its own. Other files in an existing
// folder stay.
func (f *certsFlags) writeComponents() error {
	c := &f.components
	if c.dir == "" {
		if len(c.owners) > 0 || c.signing {
			return errors.New("--component-owner and --component-signing: there is no --components-dir")
		}
		return nil
	}
	parts := maps.Clone(componentFiles)
	if c.signing {
		parts["controllers"] = slices.Concat(parts["controllers"], signingFiles)
	}
	for _, prefix := range f.prefixes {
		name := strings.TrimRight(prefix, "-.")
		if parts[name] != nil || c.isInstance(name) {
			return fmt.Errorf("--node-prefix: %q is also the name of a component", prefix)
		}
		if f.nodes > 0 {
			parts[name] = []string{name + datadir.KubeconfigSuffix}
		}
	}
	for name := range c.owners {
		if parts[name] == nil {
			return fmt.Errorf("--component-owner: %q is not one of: %s", name,
				strings.Join(slices.Sorted(maps.Keys(parts)), ", "))
		}
	}
	for name, files := range parts {
		for _, at := range c.instances(name) {
			if err := f.writeComponent(name, at, files); err != nil {
				return fmt.Errorf("--components-dir: %w", err)
			}
		}
	}
	return nil
}

// writeComponent never leaves the component's folder: the component may own it since an earlier run,
// and may have put links into it.
func (f *certsFlags) writeComponent(name string, at instance, files []string) error {
	owner := -1 // it stays
	if id, ok := f.components.owners[name]; ok {
		n, err := strconv.ParseUint(id, 10, 31)
		if err != nil {
			return fmt.Errorf("--component-owner: %q is not the ID of a user", id)
		}
		owner = int(n)
	}
	dir := filepath.Join(f.components.dir, at.or(name))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, file := range signingFiles { // which it may have had
		if slices.Contains(files, file) {
			continue
		}
		if err := root.Remove(strings.TrimPrefix(file, "pki/")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	folders := []string{"."}
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(f.dir, filepath.FromSlash(at.source(file))))
		if err != nil {
			return err
		}
		to := filepath.FromSlash(strings.TrimPrefix(file, "pki/"))
		if folder := filepath.Dir(to); folder != "." {
			if err := root.MkdirAll(folder, 0o700); err != nil {
				return err
			}
			folders = append(folders, folder)
		}
		if err := replaceFile(root, to, content, owner); err != nil {
			return err
		}
	}
	for _, folder := range folders {
		if err := errors.Join(root.Chmod(folder, 0o700), root.Chown(folder, owner, owner)); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile writes a file that only its owner may use. A reader sees the old content or the new.
func replaceFile(root *os.Root, name string, content []byte, owner int) error {
	next := name + ".new"
	if err := root.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(next, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Chown(owner, owner), f.Close()); err != nil {
		return err
	}
	return root.Rename(next, name)
}
