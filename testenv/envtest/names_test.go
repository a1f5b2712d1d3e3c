package envtest_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A suite compiles with a changed import only if every name exists, with the same fields, methods and signatures.
func TestNames_MatchControllerRuntime(t *testing.T) {
	t.Parallel()
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}",
		"sigs.k8s.io/controller-runtime").Output()
	require.NoError(t, err)
	upstream := filepath.Join(strings.TrimSpace(string(module)), "pkg")
	theirs, ours := readNames(t, filepath.Join(upstream, "envtest")), readNames(t, ".")
	// Their types are aliases of types in internal packages. KubeCtl has no alias, but a method returns it.
	hidden := readNames(t, filepath.Join(upstream, "internal", "testing", "controlplane"))
	for name, shape := range readNames(t, filepath.Join(upstream, "internal", "testing", "process")) {
		hidden[name] = shape
	}
	theirs["KubeCtl"] = "alias"
	compared := 0
	for name, shape := range theirs {
		typeName, _, isMember := strings.Cut(name, ".")
		require.Contains(t, ours, name)
		switch {
		case shape == "alias":
			for member, shape := range hidden {
				if strings.HasPrefix(member, typeName+".") {
					require.Equal(t, shape, ours[member], member)
					compared++
				}
			}
		case isMember || strings.HasPrefix(shape, "func("):
			require.Equal(t, shape, ours[name], name)
			compared++
		}
	}
	require.Greater(t, compared, 100)
}

// readNames returns the exported names of a package: functions, types, and their fields and methods as Type.Name,
// each with its signature or type. A name that refers to another package's is an alias.
func readNames(t *testing.T, folder string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	require.NoError(t, err)
	names := map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		expandImports(parsed)
		for _, decl := range parsed.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				addFunc(names, decl)
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					addSpec(names, spec)
				}
			}
		}
	}
	require.NotEmpty(t, names, folder)
	return names
}

// expandImports qualifies types of other packages with the import's path, independently of the name in the file.
// Types of controller-runtime's own packages are not qualified, as ours are in one package.
func expandImports(file *ast.File) {
	paths := map[string]string{}
	for _, spec := range file.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
		name := path.Base(imported)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		paths[name] = imported
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := selector.X.(*ast.Ident); ok && paths[pkg.Name] != "" {
				pkg.Name = "path:" + paths[pkg.Name]
			}
		}
		return true
	})
}

func addFunc(names map[string]string, decl *ast.FuncDecl) {
	if !decl.Name.IsExported() {
		return
	}
	name, shape := decl.Name.Name, show(decl.Type)
	if decl.Recv != nil {
		receiver := decl.Recv.List[0].Type
		if star, ok := receiver.(*ast.StarExpr); ok {
			receiver = star.X
			shape = "pointer " + shape
		}
		name = show(receiver) + "." + name
	}
	names[name] = shape
}

func addSpec(names map[string]string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			if name.IsExported() {
				names[name.Name] = "value"
			}
		}
	case *ast.TypeSpec:
		if !spec.Name.IsExported() {
			return
		}
		names[spec.Name.Name] = "type"
		if spec.Assign.IsValid() {
			names[spec.Name.Name] = "alias"
		}
		var members *ast.FieldList
		switch t := spec.Type.(type) {
		case *ast.StructType:
			members = t.Fields
		case *ast.InterfaceType:
			members = t.Methods
		default:
			return
		}
		for _, field := range members.List {
			if len(field.Names) == 0 {
				embedded := show(field.Type)
				names[spec.Name.Name+"."+embedded] = "embedded"
			}
			for _, name := range field.Names {
				if name.IsExported() {
					names[spec.Name.Name+"."+name.Name] = show(field.Type)
				}
			}
		}
	}
}

// show prints a type, without the names of parameters and results.
func show(expr ast.Expr) string {
	ast.Inspect(expr, func(n ast.Node) bool {
		f, ok := n.(*ast.FuncType)
		if !ok {
			return true
		}
		for _, list := range []*ast.FieldList{f.Params, f.Results} {
			if list == nil {
				continue
			}
			var unnamed []*ast.Field
			for _, field := range list.List {
				for range max(1, len(field.Names)) {
					unnamed = append(unnamed, &ast.Field{Type: field.Type})
				}
			}
			list.List = unnamed
		}
		return true
	})
	var out bytes.Buffer
	if err := printer.Fprint(&out, token.NewFileSet(), expr); err != nil {
		panic(err) // the parser has made it
	}
	ownPackages := strings.NewReplacer("path:sigs.k8s.io/controller-runtime/pkg/internal/testing/controlplane.", "",
		"path:sigs.k8s.io/controller-runtime/pkg/internal/testing/process.", "")
	return ownPackages.Replace(strings.Join(strings.Fields(out.String()), " "))
}
