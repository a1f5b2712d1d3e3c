package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// initializers are the files of packages with an init function, and its purpose. Programs may change state of the whole
// process. Packages that testenv imports must not, since they run in the processes of other people's tests.
var initializers = map[string]string{
	"apiserver/fieldmanager/layout.go":     "completes its own variables, which contain themselves",
	"apiserver/patch/jsonpatch.go":         "limits the copies of JSON patches, which the library can limit for the process alone",
	"controllers/podautoscaler/compute.go": "completes its own variable, which contains functions that use it",
}

// TestInit_FunctionsAreListed finds init functions outside of programs that are not in the list.
func TestInit_FunctionsAreListed(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipOtherModules(path, entry)
		}
		name := strings.TrimPrefix(filepath.ToSlash(path), "../")
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "cmd/") ||
			strings.HasPrefix(name, "kubectl-lite/") || strings.HasPrefix(name, "test/") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				found[name] = true
			}
		}
		return nil
	}))
	for name := range found {
		require.Contains(t, initializers, name, "an init function")
	}
	for name := range initializers {
		require.Contains(t, found, name, "it no longer has an init function: remove it from the list")
	}
}
