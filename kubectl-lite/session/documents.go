package session

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/coxswain-dev/coxswain/internal/limits"
)

// documents reads a stream of YAML or JSON documents, each with its aliases expanded.
type documents struct {
	from *utilyaml.YAMLReader
	next bytes.Reader
	any  bool
}

func newDocuments(r io.Reader) *documents {
	return &documents{from: utilyaml.NewYAMLReader(bufio.NewReader(r))}
}

func (d *documents) Read(p []byte) (int, error) {
	for d.next.Len() == 0 {
		text, err := d.from.Read()
		if err != nil {
			return 0, err
		}
		if text, err = limits.ExpandYAML(text); err != nil {
			return 0, err
		}
		if d.any {
			text = append([]byte("\n---\n"), text...)
		}
		d.any = true
		d.next.Reset(text)
	}
	return d.next.Read(p)
}

// CheckFiles rejects YAML files whose aliases would make them too large. It reads the files that resource.Builder
// will read.
func CheckFiles(names []string, recursive bool) error {
	for _, name := range names {
		paths, err := filepath.Glob(name)
		if err != nil || len(paths) == 0 {
			paths = []string{name}
		}
		for _, root := range paths {
			err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
				switch {
				case err != nil:
					return nil // it is the builder's to say that there is no such file
				case entry.IsDir() && path != root && !recursive:
					return fs.SkipDir
				case entry.IsDir(), path != root && !slices.Contains(resource.FileExtensions, filepath.Ext(path)):
					return nil
				}
				return checkFile(path)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func checkFile(path string) error {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil // a pipe can be read only once
	}
	file, err := os.Open(path)
	if err != nil {
		return nil // which the builder meets as well
	}
	defer file.Close()
	if _, err := io.Copy(io.Discard, newDocuments(file)); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("error parsing %s: %w", path, err)
	}
	return nil
}
