package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	fenced   = regexp.MustCompile("(?ms)^```.*?^```$")
	indented = regexp.MustCompile(`(?m)^    .*$`)
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	quoted   = regexp.MustCompile("`([^`\n]+)`")
	filename = regexp.MustCompile(`^[\w./*-]+$`)
	dotted   = regexp.MustCompile(`^([A-Za-z]\w*)\.(\w+)(\(\))?$`)
	testName = regexp.MustCompile(`^(Test|Benchmark|Example|Fuzz)\w+$`)
)

// TestDocs_NamesExist compares the documents with the repository: the targets of links and the paths in backquotes
// exist; `package.Name`, `Type.Method` and the names of tests are declared.
func TestDocs_NamesExist(t *testing.T) {
	t.Parallel()
	h := readHouse(t, "..")
	for _, doc := range h.documents {
		raw, err := os.ReadFile(filepath.Join("..", doc))
		require.NoError(t, err)
		text := fenced.ReplaceAllString(string(raw), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target != "" && !strings.Contains(target, "://") && !h.exists(filepath.Join(filepath.Dir(doc), target)) {
				t.Errorf("%s links to %s, which does not exist", doc, m[1])
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(indented.ReplaceAllString(text, ""), -1) {
			if !h.knows(m[1]) {
				t.Errorf("%s names `%s`, which does not exist", doc, m[1])
			}
		}
	}
	require.Greater(t, len(h.documents), 10)
	require.False(t, h.knows("apiserver/nosuch.go"))
	require.False(t, h.knows("nosuch.go"))
	require.False(t, h.knows("Server.nosuch"))
	require.False(t, h.knows("TestNosuch_Nothing"))
	require.True(t, h.knows("apiserver/write.go"))
	require.True(t, h.knows("Server.modify"))
	require.True(t, h.knows("kubectl get pods"))
}

// house is the set of names in the repository.
type house struct {
	documents []string
	paths     map[string]bool
	names     map[string]bool // base names of files
	folders   map[string]bool // top-level folders
	types     map[string]bool // packages and types
	declared  map[string]bool // all other names, including fields and methods
}

func readHouse(t *testing.T, root string) *house {
	h := &house{paths: map[string]bool{}, names: map[string]bool{}, folders: map[string]bool{},
		types: map[string]bool{}, declared: map[string]bool{}}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") && name != ".ci" || name == "bin") {
			return filepath.SkipDir
		}
		h.paths[filepath.ToSlash(name)], h.names[d.Name()] = true, true
		if d.IsDir() && name != "." && !strings.ContainsRune(name, filepath.Separator) {
			h.folders[name] = true
		}
		switch filepath.Ext(name) {
		case ".md":
			h.documents = append(h.documents, name)
		case ".go":
			return h.declare(path)
		}
		return nil
	})
	require.NoError(t, err)
	return h
}

// declare records the names of a source file.
func (h *house) declare(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	h.types[file.Name.Name] = true
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			h.declared[n.Name.Name] = true
		case *ast.TypeSpec:
			h.types[n.Name.Name], h.declared[n.Name.Name] = true, true
		case *ast.ValueSpec:
			for _, name := range n.Names {
				h.declared[name.Name] = true
			}
		case *ast.Field:
			for _, name := range n.Names {
				h.declared[name.Name] = true
			}
		}
		return true
	})
	return nil
}

func (h *house) exists(path string) bool { return h.paths[filepath.ToSlash(filepath.Clean(path))] }

// knows reports whether a text in backquotes names an existing thing, or cannot be looked up here.
func (h *house) knows(text string) bool {
	switch {
	case testName.MatchString(text) && strings.Contains(text, "_"):
		return h.declared[text]
	case strings.HasSuffix(text, ".go") && filename.MatchString(text):
		return h.knowsFile(text)
	case filename.MatchString(text) && strings.Contains(text, "/"):
		top, _, _ := strings.Cut(text, "/")
		return !h.folders[top] || strings.Contains(text, "*") || h.exists(text)
	}
	if m := dotted.FindStringSubmatch(text); m != nil && h.types[m[1]] &&
		(ast.IsExported(m[1]) || ast.IsExported(m[2])) {
		return h.declared[m[2]]
	}
	return true
}

func (h *house) knowsFile(text string) bool {
	if !strings.Contains(text, "/") {
		return h.matches(text)
	}
	return strings.Contains(text, "*") || h.exists(text)
}

// matches reports whether any file has a name of this pattern.
func (h *house) matches(pattern string) bool {
	for name := range h.names {
		if ok, err := filepath.Match(pattern, name); ok && err == nil {
			return true
		}
	}
	return false
}
