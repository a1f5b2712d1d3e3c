package test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlatforms_OthersCompile type-checks the code that ships for another platform from source. That takes seconds,
// while compiling takes minutes. make platforms compiles and vets it.
func TestPlatforms_OthersCompile(t *testing.T) {
	t.Parallel()
	p := &platform{os: "darwin", arch: "arm64", packages: map[string]*listed{}}
	require.NoError(t, p.list("./cmd/...", "./testenv/..."))
	require.Empty(t, p.check(p.order))
	require.Greater(t, len(p.packages), 500)
	require.NotNil(t, p.packages["os"].types.Scope().Lookup("Getpid"))

	other := p.packages["github.com/coxswain-dev/coxswain/node/process"]
	require.NotNil(t, other)
	other.GoFiles = append(other.GoFiles, "of_linux.go")
	other.source = map[string]string{"of_linux.go": "package process\n\nfunc breaks() int { return \"text\" }\n"}
	require.Len(t, p.check([]*listed{other}), 1, "the check finds an error")
}

// platform is the set of packages of this module, and of all their imports, on a platform.
type platform struct {
	os, arch string
	order    []*listed // each one after its imports
	packages map[string]*listed
}

// listed is a package in the output of go list, with the result of its check.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct {
		GoVersion string
		Main      bool
	}

	source map[string]string // of files that do not exist
	files  []*ast.File
	types  *types.Package
}

func (p *platform) list(patterns ...string) error {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap,Module"},
		patterns...)...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch, "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		l := &listed{}
		if err := decoder.Decode(l); err != nil {
			return err
		}
		p.order = append(p.order, l)
		p.packages[l.ImportPath] = l
	}
	return nil
}

// check returns the errors of packages. Each package must come after its imports. Function bodies are checked in this
// module only.
func (p *platform) check(packages []*listed) []error {
	set := token.NewFileSet()
	errs := parse(set, packages)
	for _, l := range packages {
		config := types.Config{
			Importer: importer(func(path string) (*types.Package, error) {
				if mapped := l.ImportMap[path]; mapped != "" {
					path = mapped
				}
				if path == "unsafe" {
					return types.Unsafe, nil
				}
				return p.packages[path].types, nil
			}),
			Sizes:            types.SizesFor("gc", p.arch),
			IgnoreFuncBodies: l.Module == nil || !l.Module.Main,
			Error:            func(err error) { errs = append(errs, err) },
		}
		if l.Module != nil && l.Module.GoVersion != "" {
			config.GoVersion = "go" + l.Module.GoVersion
		}
		l.types, _ = config.Check(l.ImportPath, set, l.files, nil)
	}
	return errs
}

func parse(set *token.FileSet, packages []*listed) (errs []error) {
	var mu sync.Mutex
	var parsing sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, l := range packages {
		parsing.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			l.files = nil
			for _, name := range l.GoFiles {
				var source any
				if text, ok := l.source[name]; ok {
					source = text
				}
				file, err := parser.ParseFile(set, filepath.Join(l.Dir, name), source, parser.SkipObjectResolution)
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
				l.files = append(l.files, file)
			}
		})
	}
	parsing.Wait()
	return errs
}

type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }
