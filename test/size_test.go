package test

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// maxLines limits a package: the lines of Go in its own folder, without tests and generated files. A larger package is
// divided into folders.
const maxLines = 6000

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func TestSize_OfPackagesIsLimited(t *testing.T) {
	t.Parallel()
	lines := packageLines(t)
	require.Greater(t, len(lines), 200)
	for _, folder := range slices.Sorted(maps.Keys(lines)) {
		if n := lines[folder]; n > maxLines {
			t.Errorf("%s has %d lines, more than %d: divide it", folder, n, maxLines)
		}
	}
}

// packageLines counts the lines of each folder with Go files that are neither tests nor generated.
func packageLines(t *testing.T) map[string]int {
	t.Helper()
	lines := map[string]int{}
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipOtherModules(path, entry)
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err == nil && !generated.Match(source) {
			lines[strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../")] += bytes.Count(source, []byte("\n"))
		}
		return err
	}))
	return lines
}
