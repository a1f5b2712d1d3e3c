package apiserver

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Several goroutines read a request, and parts of it are copies. Its fields are assigned only in request.go. A create
// sets the name of its write, not of its request.
func TestRequest_FieldsAreAssignedInOneFile(t *testing.T) {
	t.Parallel()
	fields := map[string]bool{}
	typ := reflect.TypeFor[request]()
	for i := range typ.NumField() {
		fields[typ.Field(i).Name] = true
	}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	assigned := 0
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			assignment, ok := n.(*ast.AssignStmt)
			if !ok {
				return true
			}
			for _, target := range assignment.Lhs {
				selector, ok := target.(*ast.SelectorExpr)
				if !ok || !fields[selector.Sel.Name] {
					continue
				}
				if x, ok := selector.X.(*ast.Ident); ok && x.Name == "wr" && selector.Sel.Name == "name" {
					continue
				}
				if assigned++; path != "request.go" {
					t.Errorf("%s: a request is changed", set.Position(selector.Pos()))
				}
			}
			return true
		})
	}
	require.Greater(t, assigned, 5)
}
