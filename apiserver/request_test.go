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

// A request is read by several goroutines, and copied for parts of it. Its fields are assigned where it is made, in
// request.go, and nowhere else. The name of a write, which a create chooses, is not the request's.
func TestRequest_ChangesOnlyWhereItIsMade(t *testing.T) {
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
