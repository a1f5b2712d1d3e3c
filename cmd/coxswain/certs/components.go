package certs

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

// componentFiles lists the files of the data directory that each component needs. No component gets the CAs' keys.
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

// signingFiles are the additional files of controllers that sign certificates and tokens. With them one can sign any
// certificate or token.
var signingFiles = []string{"pki/ca.key", "pki/kubelet-serving-ca.crt", "pki/kubelet-serving-ca.key",
	"pki/sa.key"}

// componentFlags set the folder with each component's own files, and the user that the component runs as.
type componentFlags struct {
	dir      string
	owners   map[string]string // user IDs, by component
	replicas map[string]int    // by component
	signing  bool
}

// writeComponents copies each component's files to a folder of its own. It keeps other files in an existing folder,
// except the keys of --component-signing.
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
		for _, i := range c.instances(name) {
			if err := f.writeComponent(name, i, files); err != nil {
				return fmt.Errorf("--components-dir: %w", err)
			}
		}
	}
	return nil
}

// writeComponent copies the files of one instance of a component. It never writes outside the component's folder: since
// an earlier run, the component may own the folder and may have put symbolic links into it.
func (f *certsFlags) writeComponent(name string, i instance, files []string) error {
	owner := -1 // chown does not change it
	if id, ok := f.components.owners[name]; ok {
		n, err := strconv.ParseUint(id, 10, 31)
		if err != nil {
			return fmt.Errorf("--component-owner: %q is not the ID of a user", id)
		}
		owner = int(n)
	}
	dir := filepath.Join(f.components.dir, i.or(name))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, file := range signingFiles { // an earlier run may have written them
		if slices.Contains(files, file) {
			continue
		}
		if err := root.Remove(strings.TrimPrefix(file, "pki/")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	folders := []string{"."}
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(f.dir, filepath.FromSlash(i.source(file))))
		if err != nil {
			return err
		}
		target := filepath.FromSlash(strings.TrimPrefix(file, "pki/"))
		if folder := filepath.Dir(target); folder != "." {
			if err := root.MkdirAll(folder, 0o700); err != nil {
				return err
			}
			folders = append(folders, folder)
		}
		if err := replaceFile(root, target, content, owner); err != nil {
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

// replaceFile replaces a file atomically by one with mode 0600: a reader sees either the old or the new content.
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
