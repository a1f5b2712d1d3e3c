package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// way is a table of hops: two columns without headings. The first one names files or folders.
var (
	way = regexp.MustCompile(`(?m)^\| \| \|\n\|---\|---\|\n((?:\|.*\|\n)+)`)
	hop = regexp.MustCompile(`^[A-Za-z]+(\.[A-Za-z]+)?$`)
)

// TestArchitecture_HopsExistInTheirFiles compares the tables of hops in docs/architecture.md with the
// code: each function in a row must be declared in a file of the row.
func TestArchitecture_HopsExistInTheirFiles(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/architecture.md")
	require.NoError(t, err)
	hops := 0
	for _, table := range way.FindAllStringSubmatch(string(text), -1) {
		for row := range strings.Lines(table[1]) {
			known := map[string]bool{}
			var named []string
			for _, m := range quoted.FindAllStringSubmatch(row, -1) {
				switch {
				case strings.HasSuffix(m[1], ".go"):
					declarations(t, filepath.Join("..", m[1]), known)
				case hop.MatchString(m[1]):
					named = append(named, m[1])
				}
			}
			for _, name := range named {
				if hops++; !known[name] {
					t.Errorf("%s is not declared in the files of its row: %s", name, strings.TrimSpace(row))
				}
			}
		}
	}
	require.Greater(t, hops, 30)
}

// task is a row of a table of docs/changing.md: a task, a file and a declaration in it.
var task = regexp.MustCompile("(?m)^\\| .* \\| `(.*)` \\| `(.*)` \\|$")

// TestChanging_TasksExist compares the table of tasks with the code.
func TestChanging_TasksExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/changing.md")
	require.NoError(t, err)
	tasks := task.FindAllStringSubmatch(string(text), -1)
	require.Equal(t, strings.Count(string(text), "\n| ")-strings.Count(string(text), "\n| to change "), len(tasks),
		"each row is a task")
	require.GreaterOrEqual(t, len(tasks), 40)
	for _, row := range tasks {
		known := map[string]bool{}
		declarations(t, filepath.Join("..", row[1]), known)
		require.Contains(t, known, row[2], row[1])
	}
}

// declarations adds all declarations of a file: functions, methods as Type.method, variables.
func declarations(t *testing.T, path string, declared map[string]bool) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			declared[declaredName(d)] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok {
					for _, n := range v.Names {
						declared[n.Name] = true
					}
				}
			}
		}
	}
}

// declaredName returns a function's name, and a method's as Type.method.
func declaredName(f *ast.FuncDecl) string {
	if f.Recv != nil {
		receiver := f.Recv.List[0].Type
		if pointer, ok := receiver.(*ast.StarExpr); ok {
			receiver = pointer.X
		}
		if named, ok := receiver.(*ast.Ident); ok {
			return named.Name + "." + f.Name.Name
		}
	}
	return f.Name.Name
}
