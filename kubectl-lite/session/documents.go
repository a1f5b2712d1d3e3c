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

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/coxswain-dev/coxswain/internal/limits"
)

// documents reads a stream of YAML or JSON documents, each with its aliases expanded.
type documents struct {
	source *utilyaml.YAMLReader
	next   bytes.Reader // the rest of the current document
	begun  bool         // the next document needs a separator
	err    error        // ends the stream: the library's decoder drops the first error, and reads on
}

// newDocuments returns a reader of r's documents as UTF-8. r may be UTF-16 with a byte order mark, as in cli-runtime.
func newDocuments(r io.Reader) *documents {
	r = transform.NewReader(r, unicode.BOMOverride(unicode.UTF8.NewDecoder()))
	return &documents{source: utilyaml.NewYAMLReader(bufio.NewReader(r))}
}

func (d *documents) Read(p []byte) (int, error) {
	for d.next.Len() == 0 {
		if d.err != nil {
			return 0, d.err
		}
		var text []byte
		if text, d.err = d.source.Read(); d.err != nil {
			continue
		}
		if text, d.err = limits.ExpandYAML(text); d.err != nil {
			continue
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

// LimitStdin runs a command of kubectl that reads documents from the process's standard input. It limits the size of
// each document when its aliases are expanded. run is one of the calls that Caught takes; LimitStdin returns its error,
// or the error of reading the documents.
//
// cli-runtime reads os.Stdin, so it is a pipe while run runs. If run returns before the end of the input, the goroutine
// that fills the pipe ends with the next document that it reads, or with the process.
func LimitStdin(run func()) error {
	in := os.Stdin
	limited, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("limit standard input: %w", err)
	}
	failed := make(chan error, 1)
	go passDocuments(w, in, failed)
	os.Stdin = limited
	defer func() {
		os.Stdin = in
		limited.Close()
	}()
	ended := Caught(run)
	select {
	case err := <-failed:
		return fmt.Errorf("error parsing STDIN: %w", err)
	default:
	}
	if ended != nil {
		return ended
	}
	return nil
}

// passDocuments copies documents until the end of the input, an error, or the end of w's reader. After an error of the
// input it writes a text that is neither YAML nor JSON. Otherwise the reader would take the documents before the error
// for all of them, and apply --prune would delete the objects of the others.
func passDocuments(w io.WriteCloser, in io.Reader, failed chan<- error) {
	defer w.Close()
	documents := newDocuments(in)
	buffer := make([]byte, 32<<10)
	for {
		n, err := documents.Read(buffer)
		if _, gone := w.Write(buffer[:n]); gone != nil {
			return
		}
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			failed <- err
			_, _ = io.WriteString(w, "\n---\n]\n") // the reader may be gone
			return
		}
	}
}
