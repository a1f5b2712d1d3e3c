package podstate

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// values are all packages that the state machine may import: they compute. A package that reaches a network, a file,
// the clock, another goroutine or an implementation of node/runtime has no place here.
var values = map[string]bool{
	"encoding/json": true, "errors": true, "fmt": true, "iter": true, "slices": true, "strings": true, "time": true,
	"k8s.io/api/core/v1": true, "k8s.io/apimachinery/pkg/apis/meta/v1": true, "k8s.io/kubectl/pkg/util/qos": true,
	"github.com/coxswain-dev/coxswain/node/amount": true, "github.com/coxswain-dev/coxswain/node/runtime": true,
}

// forbidden are the names of these packages that wait, read the clock, or act.
var forbidden = map[string]bool{
	"runtime.Runtime": true, "runtime.Container": true, "runtime.Host": true, "runtime.Machine": true,
	"runtime.Router": true, "runtime.LogReader": true, "runtime.Admission": true, "runtime.Imageless": true,
	"time.Now": true, "time.Since": true, "time.Until": true, "time.After": true, "time.AfterFunc": true,
	"time.Sleep": true, "time.Tick": true, "time.NewTimer": true, "time.NewTicker": true, "metav1.Now": true,
	"fmt.Print": true, "fmt.Println": true, "fmt.Printf": true, "fmt.Scan": true,
}

func TestPackage_IsPure(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	checked := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		checked++
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			require.True(t, values[path], "%s imports %s", name, path)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.ChanType, *ast.SelectStmt:
				t.Errorf("%s is concurrent", name)
			case *ast.SelectorExpr:
				if pkg, ok := n.X.(*ast.Ident); ok && forbidden[pkg.Name+"."+n.Sel.Name] {
					t.Errorf("%s uses %s.%s", name, pkg.Name, n.Sel.Name)
				}
			}
			return true
		})
	}
	require.Greater(t, checked, 5)
}
