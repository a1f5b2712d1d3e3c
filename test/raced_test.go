package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRaced_ListsTheConcurrentPackages compares raced.txt with the code. It must list each package that has tests, and
// goroutines, channels, locks or atomics in its own code. make test runs these with the race detector, others without.
func TestRaced_ListsTheConcurrentPackages(t *testing.T) {
	t.Parallel()
	tested, concurrent := map[string]bool{}, map[string]bool{}
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipOtherModules(path, entry)
		}
		folder := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../")
		switch {
		case strings.HasSuffix(path, "_test.go"):
			tested[folder] = true
		case strings.HasSuffix(path, ".go") && !concurrent[folder]:
			concurrent[folder], err = usesConcurrency(path)
		}
		return err
	}))
	want := map[string]bool{}
	for folder := range tested {
		if concurrent[folder] && !strings.HasPrefix(folder, "test/") {
			want[folder] = true
		}
	}
	require.Greater(t, len(want), 50)
	require.Equal(t, want, readRaced(t))
}

// readRaced returns the packages of raced.txt, without its comments.
func readRaced(t *testing.T) map[string]bool {
	text, err := os.ReadFile("raced.txt")
	require.NoError(t, err)
	raced := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") {
			require.False(t, raced[line], "%s is listed twice", line)
			raced[line] = true
		}
	}
	return raced
}

// skipOtherModules skips folders with a go.mod of their own, and folders that are not packages.
func skipOtherModules(path string, entry fs.DirEntry) error {
	if path == ".." {
		return nil
	}
	if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || entry.Name() == "testdata" ||
		strings.HasPrefix(entry.Name(), ".") {
		return filepath.SkipDir
	}
	return nil
}

// usesConcurrency reports whether a file starts goroutines, uses channels, or imports sync or sync/atomic.
func usesConcurrency(path string) (bool, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return false, err
	}
	found := false
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			found = found || n.Path.Value == `"sync"` || n.Path.Value == `"sync/atomic"`
		case *ast.GoStmt, *ast.ChanType, *ast.SendStmt, *ast.SelectStmt:
			found = true
		case *ast.UnaryExpr:
			found = found || n.Op == token.ARROW
		}
		return !found
	})
	return found, nil
}
