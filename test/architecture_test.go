package test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "renew the lists in docs/architecture.md")

// TestArchitecture_ListsAreTheCodes makes the lists of docs/architecture.md from the code and compares them.
func TestArchitecture_ListsAreTheCodes(t *testing.T) {
	t.Parallel()
	const file = "../docs/architecture.md"
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	text := string(raw)
	packages, lines := sources(t)
	for name, list := range map[string]string{
		"floors": floorRows(lines), "packages": packageRows(packages), "middleware": middlewareRows(t),
		"stages": stageRows(t),
	} {
		before, rest, found := strings.Cut(text, "<!-- list: "+name+" -->\n")
		require.True(t, found, name)
		_, after, found := strings.Cut(rest, "<!-- end -->\n")
		require.True(t, found, name)
		text = before + "<!-- list: " + name + " -->\n" + list + "<!-- end -->\n" + after
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		return
	}
	require.Equal(t, text, string(raw), "the code has changed: go test ./test -run TestArchitecture -update")
}

// sources returns the first sentence of each package's comment, and the lines of each floor without tests.
func sources(t *testing.T) (packages map[string]string, lines map[string]int) {
	packages, lines = map[string]string{}, map[string]int{}
	root := os.DirFS("..")
	require.NoError(t, fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		hidden := name != "." && strings.HasPrefix(d.Name(), ".")
		switch {
		case err != nil:
			return err
		case d.IsDir() && (hidden || d.Name() == "testdata" || name != "." && nestedModule(filepath.Join("..", name))):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		source, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil || pinned(file) {
			return err
		}
		folder := path.Dir(name)
		if sentence := firstSentence(file.Doc); sentence != "" {
			packages[folder] = sentence
		}
		if !forTests(name) || topFolder(name) == "testenv" && !strings.HasSuffix(name, "_test.go") {
			lines[topFolder(name)] += strings.Count(string(source), "\n")
		}
		return nil
	}))
	return packages, lines
}

// longSentence is how long a sentence may be before it is cut at its colon.
const longSentence = 110

// firstSentence returns the first sentence of a declaration's comment, without the name.
func firstSentence(comment *ast.CommentGroup) string {
	sentence := new(doc.Package).Synopsis(comment.Text())
	sentence = strings.TrimPrefix(strings.TrimPrefix(sentence, "Package "), "Command ")
	_, sentence, _ = strings.Cut(sentence, " ")
	if len(sentence) > longSentence {
		sentence, _, _ = strings.Cut(sentence, ": ")
	}
	return strings.ReplaceAll(strings.TrimRight(sentence, ".:"), "|", `\|`)
}

// floorRows lists the top folders, with what the table of floors lets them import.
func floorRows(lines map[string]int) string {
	sizes, below := map[string]int{}, map[string]map[string]bool{}
	top := func(floor string) string { first, _, _ := strings.Cut(floor, "/"); return first }
	for floor, allowed := range floors {
		folder := top(floor)
		sizes[folder] += lines[floor]
		for _, f := range allowed {
			if below[folder] == nil {
				below[folder] = map[string]bool{}
			}
			below[folder]["`"+top(f)+"`"] = top(f) != folder
		}
	}
	text := "| folder | lines | imports |\n|---|---|---|\n"
	for _, folder := range slices.Sorted(maps.Keys(sizes)) {
		maps.DeleteFunc(below[folder], func(_ string, other bool) bool { return !other })
		if sizes[folder] > 0 {
			text += fmt.Sprintf("| `%s` | under %s | %s |\n", folder, size(sizes[folder]),
				strings.Join(slices.Sorted(maps.Keys(below[folder])), ", "))
		}
	}
	return text
}

// size rounds up a number of lines, so that it does not change with each commit.
func size(lines int) string {
	for step := 100; ; step *= 10 {
		for _, factor := range []int{1, 2, 3, 4, 5, 7} {
			switch limit := factor * step; {
			case lines >= limit:
			case limit >= 1000:
				return fmt.Sprintf("%d,%03d", limit/1000, limit%1000)
			default:
				return strconv.Itoa(limit)
			}
		}
	}
}

func packageRows(packages map[string]string) string {
	text := "| package | |\n|---|---|\n"
	for _, folder := range slices.Sorted(maps.Keys(packages)) {
		if !isForTests(folder) || topFolder(folder+"/") == "testenv" {
			text += fmt.Sprintf("| `%s` | %s |\n", folder, packages[folder])
		}
	}
	return text
}

// middlewareRows lists the arguments of Use in Server.Handler, with the conditions of the statements around them.
func middlewareRows(t *testing.T) string {
	comments := map[string]*ast.CommentGroup{}
	var handler *ast.FuncDecl
	files, err := filepath.Glob("../apiserver/*.go")
	require.NoError(t, err)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && !strings.HasSuffix(name, "_test.go") {
				comments[declaredName(f)] = f.Doc
				if declaredName(f) == "Server.Handler" {
					handler = f
				}
			}
		}
	}
	require.NotNil(t, handler)
	text := "| middleware | if | |\n|---|---|---|\n"
	var visit func(s ast.Stmt, condition string)
	visit = func(s ast.Stmt, condition string) {
		switch s := s.(type) {
		case *ast.BlockStmt:
			for _, inner := range s.List {
				visit(inner, condition)
			}
		case *ast.IfStmt:
			visit(s.Body, "`"+source(t, s.Cond)+"`")
			if s.Else != nil {
				visit(s.Else, "not `"+source(t, s.Cond)+"`")
			}
		case *ast.ExprStmt:
			call, ok := s.X.(*ast.CallExpr)
			if !ok || source(t, call.Fun) != "r.Use" {
				return
			}
			for _, argument := range call.Args {
				name := strings.Replace(source(t, argument), "s.", "Server.", 1)
				text += fmt.Sprintf("| `%s` | %s | %s |\n", name, condition, firstSentence(comments[name]))
			}
		}
	}
	visit(handler.Body, "")
	return text
}

// stageRows lists the stages of admit.go with their functions for each kind of write.
func stageRows(t *testing.T) string {
	file, err := parser.ParseFile(token.NewFileSet(), "../apiserver/admit.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	text := "| stage | of a create | of an update | of an update of a subresource |\n|---|---|---|---|\n"
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "stages" {
			return true
		}
		for _, stage := range spec.Values[0].(*ast.CompositeLit).Elts {
			fields := stage.(*ast.CompositeLit).Elts
			name, err := strconv.Unquote(source(t, fields[0]))
			require.NoError(t, err)
			functions := map[string]string{}
			for _, step := range fields[1].(*ast.CompositeLit).Elts {
				pair := step.(*ast.KeyValueExpr)
				functions[source(t, pair.Key)] = "`" + source(t, pair.Value) + "`"
			}
			text += fmt.Sprintf("| %s | %s | %s | %s |\n", name, functions["creating"], functions["updating"],
				functions["updatingPart"])
		}
		return false
	})
	return text
}

// source returns the text of an expression.
func source(t *testing.T, e ast.Expr) string {
	var text strings.Builder
	require.NoError(t, format.Node(&text, token.NewFileSet(), e))
	return text.String()
}
