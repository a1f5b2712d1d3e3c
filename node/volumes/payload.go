package volumes

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// payload is the content of a volume that is made from API objects: its files by path.
type payload map[string]payloadFile

type payloadFile struct {
	data []byte
	mode fs.FileMode
}

// dataLink is the symbolic link through which all files of a payload are read. One rename of the link replaces all
// files together, as in the kubelet's volumes: a reader of ..data sees the old files or the new ones.
const dataLink = "..data"

// stagePrefix begins the names of the folders that dataLink points to.
const stagePrefix = "..files-"

// write replaces the content of a folder with the payload, unless it is the same. No symbolic link leads out of the
// folder, whichever process made it.
func (p payload) write(dir string, gid *int64) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	old, err := root.Readlink(dataLink)
	if err != nil || !strings.HasPrefix(old, stagePrefix) || filepath.Base(old) != old {
		old = "" // not a link of the agent
	}
	if old != "" && p.same(root, old) {
		return nil
	}
	fresh, err := p.stage(root, gid)
	if err != nil {
		return err
	}
	const next = "..data_tmp"
	if err := root.RemoveAll(next); err != nil {
		return err
	}
	if err := root.Symlink(fresh, next); err != nil {
		return err
	}
	if err := root.Rename(next, dataLink); err != nil {
		return err
	}
	if err := p.link(root); err != nil {
		return err
	}
	if old != "" && old != fresh {
		return root.RemoveAll(old)
	}
	return nil
}

// stage writes the files into a new folder and returns its name.
func (p payload) stage(root *os.Root, gid *int64) (string, error) {
	fresh := stagePrefix + rand.Text()
	if err := root.Mkdir(fresh, 0o755); err != nil {
		return "", err
	}
	if err := root.Chmod(fresh, 0o755); err != nil { // regardless of the umask
		return "", err
	}
	for path, f := range p {
		if !filepath.IsLocal(path) {
			return "", fmt.Errorf("path %q leads out of the volume", path)
		}
		file := filepath.Join(fresh, path)
		if err := root.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return "", err
		}
		mode := f.mode
		if gid != nil { // the group may read and write like the owner
			mode |= (mode & 0o600) >> 3
		}
		if err := root.WriteFile(file, f.data, mode); err != nil {
			return "", err
		}
		if err := root.Chmod(file, mode); err != nil {
			return "", err
		}
		if gid != nil {
			if err := root.Lchown(file, -1, int(*gid)); err != nil {
				return "", err
			}
		}
	}
	return fresh, nil
}

// link creates the links that users see, and removes the links of files that no longer exist.
func (p payload) link(root *os.Root) error {
	visible := map[string]bool{}
	for path := range p {
		first := firstPart(path)
		visible[first] = true
		if err := root.Symlink(filepath.Join(dataLink, first), first); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 && e.Name() != dataLink && !visible[e.Name()] {
			if err := root.Remove(e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

func firstPart(path string) string {
	for {
		parent := filepath.Dir(path)
		if parent == "." {
			return path
		}
		path = parent
	}
}

// same reports whether a folder has exactly the payload's files.
func (p payload) same(root *os.Root, dir string) bool {
	seen := 0
	err := fs.WalkDir(root.FS(), dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, ok := p[rel]
		info, err := d.Info()
		if !ok || err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(f.data)) {
			return errors.Join(err, fs.ErrNotExist)
		}
		data, err := root.ReadFile(path)
		if err != nil || !bytes.Equal(data, f.data) {
			return errors.Join(err, fs.ErrNotExist)
		}
		seen++
		return nil
	})
	return err == nil && seen == len(p)
}

// parseMode returns a file's mode, or the volume's default, or 0644.
func parseMode(mode, fallback *int32) fs.FileMode {
	switch {
	case mode != nil:
		return fs.FileMode(*mode)
	case fallback != nil:
		return fs.FileMode(*fallback)
	}
	return 0o644
}
