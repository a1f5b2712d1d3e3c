package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// payload is the files of a volume that is made from API objects, by their paths.
type payload map[string]payloadFile

type payloadFile struct {
	data []byte
	mode fs.FileMode
}

// dataLink is the symbolic link through which all files of a payload are read, so that one rename changes them
// together, as the kubelet's volumes do: who looks at ..data sees the old files or the new ones.
const dataLink = "..data"

// write makes a folder show the payload. Where it does so already nothing changes.
func (p payload) write(dir string, gid *int64) error {
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err == nil && p.same(filepath.Join(dir, old)) {
		return nil
	}
	fresh, err := p.stage(dir, gid)
	if err != nil {
		return err
	}
	next := filepath.Join(dir, "..data_tmp")
	_ = os.Remove(next)
	if err := os.Symlink(filepath.Base(fresh), next); err != nil {
		return err
	}
	if err := os.Rename(next, filepath.Join(dir, dataLink)); err != nil {
		return err
	}
	if err := p.link(dir); err != nil {
		return err
	}
	if old != "" && old != filepath.Base(fresh) {
		return os.RemoveAll(filepath.Join(dir, old))
	}
	return nil
}

// stage writes the files into a new folder.
func (p payload) stage(dir string, gid *int64) (string, error) {
	fresh, err := os.MkdirTemp(dir, "..files-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(fresh, 0o755); err != nil {
		return "", err
	}
	for path, f := range p {
		file := filepath.Join(fresh, path)
		if !filepath.IsLocal(path) {
			return "", fmt.Errorf("path %q leads out of the volume", path)
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return "", err
		}
		mode := f.mode
		if gid != nil { // the group reads what the owner may
			mode |= (mode & 0o600) >> 3
		}
		if err := os.WriteFile(file, f.data, mode); err != nil {
			return "", err
		}
		if err := os.Chmod(file, mode); err != nil { // whatever the umask
			return "", err
		}
		if gid != nil {
			if err := os.Lchown(file, -1, int(*gid)); err != nil {
				return "", err
			}
		}
	}
	return fresh, nil
}

// link makes the names that users see, and removes those that are no more.
func (p payload) link(dir string) error {
	wanted := map[string]bool{}
	for path := range p {
		first := firstPart(path)
		wanted[first] = true
		if err := os.Symlink(filepath.Join(dataLink, first), filepath.Join(dir, first)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 && e.Name() != dataLink && !wanted[e.Name()] {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
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
func (p payload) same(dir string) bool {
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, ok := p[rel]
		data, err := os.ReadFile(path)
		if !ok || err != nil || !bytes.Equal(data, f.data) {
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
