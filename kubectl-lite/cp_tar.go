package kubectllite

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// packTar writes a file or folder to an archive, under the given name.
func packTar(to io.Writer, source, name string) error {
	archive := tar.NewWriter(to)
	err := filepath.WalkDir(source, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(source, file)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return packFile(archive, file, path.Join(name, filepath.ToSlash(below)), info)
	})
	return errors.Join(err, archive.Close())
}

func packFile(archive *tar.Writer, file, name string, info fs.FileInfo) error {
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if link, err = os.Readlink(file); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header.Name = name
	if info.IsDir() {
		header.Name += "/"
	}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	content, err := os.Open(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(archive, content)
	return errors.Join(err, content.Close())
}

// unpackTar writes what an archive holds below prefix to target, or into it where it is a folder and a file comes. The
// archive was made by whoever runs in the container: nothing in it may lead out of the target, so only files and folders
// are made.
func (o *copyOptions) unpackTar(from io.Reader, prefix, target string, skipped func(link, to string)) error {
	archive := tar.NewReader(from)
	told := false
	for {
		header, err := archive.Next()
		if err == io.EOF {
			_, err = io.Copy(io.Discard, from) // tar pads its last block
			return err
		}
		if err != nil {
			return err
		}
		name := strings.TrimLeft(header.Name, "/")
		below, ok := strings.CutPrefix(name, prefix)
		if !ok {
			return errors.New("tar contents corrupted")
		}
		file := filepath.Join(target, filepath.FromSlash(path.Clean("/"+below)))
		if strings.Contains("/"+below+"/", "/../") {
			fmt.Fprintf(o.ErrOut, "warning: file %q is outside target destination, skipping\n", filepath.Join(target, below))
			continue
		}
		switch {
		case header.FileInfo().IsDir():
			err = os.MkdirAll(file, 0o755)
		case header.FileInfo().Mode()&fs.ModeSymlink != 0 && !told:
			told = true
			skipped(file, header.Linkname)
		case header.FileInfo().Mode()&fs.ModeSymlink != 0:
			fmt.Fprintf(o.ErrOut, "warning: skipping symlink: %q -> %q\n", file, header.Linkname)
		case header.Typeflag == tar.TypeLink || !header.FileInfo().Mode().IsRegular():
			fmt.Fprintf(o.ErrOut, "warning: skipping %q: it is a hard link, a device or a pipe\n", file)
		default:
			err = writeFile(file, archive)
		}
		if err != nil {
			return err
		}
	}
}

func writeFile(name string, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}
