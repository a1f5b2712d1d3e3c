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

// payload is the files of a volume that is made from API objects, by their paths.
type payload map[string]payloadFile

type payloadFile struct {
	data []byte
	mode fs.FileMode
}

// dataLink is the symbolic link through which all files of a payload are read, so that one rename changes them
// together, as the kubelet's volumes do: a reader of ..data sees the old files or the new ones.
const dataLink = "..data"

// stagePrefix begins the names of the folders to which dataLink leads.
const stagePrefix = "..files-"

// write makes a folder show the payload. Where it does so already nothing changes. No symbolic link leads out
// of the folder, whichever process made it.
func (p payload) write(dir string, gid *int64) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	old, err := root.Readlink(dataLink)
	if err != nil || !strings.HasPrefix(old, stagePrefix) || filepath.Base(old) != old {
		old = "" // not ours
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

// stage writes the files into a new folder.
func (p payload) stage(root *os.Root, gid *int64) (string, error) {
	fresh := stagePrefix + rand.Text()
	if err := root.Mkdir(fresh, 0o755); err != nil {
		return "", err
	}
	if err := root.Chmod(fresh, 0o755); err != nil { // whatever the umask
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
		if gid != nil { // the group reads what the owner may
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

// link makes the names that users see, and removes those that are no more.
func (p payload) link(root *os.Root) error {
	wanted := map[string]bool{}
	for path := range p {
		first := firstPart(path)
		wanted[first] = true
		if err := root.Symlink(filepath.Join(dataLink, first), first); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 && e.Name() != dataLink && !wanted[e.Name()] {
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

// same reports that a folder has these files and no others.
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

// parseMode is a file's mode, or otherwise the volume's.
func parseMode(mode, otherwise *int32) fs.FileMode {
	switch {
	case mode != nil:
		return fs.FileMode(*mode)
	case otherwise != nil:
		return fs.FileMode(*otherwise)
	}
	return 0o644
}
