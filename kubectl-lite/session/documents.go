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
	source *utilyaml.YAMLReader
	next   bytes.Reader // the rest of the current document
	begun  bool         // the next document needs a separator
}

func newDocuments(r io.Reader) *documents {
	return &documents{source: utilyaml.NewYAMLReader(bufio.NewReader(r))}
}

func (d *documents) Read(p []byte) (int, error) {
	for d.next.Len() == 0 {
		text, err := d.source.Read()
		if err != nil {
			return 0, err
		}
		if text, err = limits.ExpandYAML(text); err != nil {
			return 0, err
		}
		if d.begun {
			text = append([]byte("\n---\n"), text...)
		}
		d.begun = true
		d.next.Reset(text)
	}
	return d.next.Read(p)
}

// CheckFiles rejects YAML files that become too large when their aliases are expanded. It reads the same files as
// resource.Builder: names may be patterns and folders.
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
					return nil // the builder reports that there is no such file
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

// checkFile reads one file to its end.
func checkFile(path string) error {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil // a pipe can be read only once
	}
	file, err := os.Open(path)
	if err != nil {
		return nil // the builder reports the same error
	}
	defer file.Close()
	if _, err := io.Copy(io.Discard, newDocuments(file)); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("error parsing %s: %w", path, err)
	}
	return nil
}
