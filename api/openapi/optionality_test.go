package openapi

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOptionality_MatchesTheComments compares the comments in the types' sources with the tables.
func TestOptionality_MatchesTheComments(t *testing.T) {
	t.Parallel()
	read := commentReader{optional: map[string][]string{}, required: map[string][]string{}}
	for _, root := range []string{
		"k8s.io/api/core/v1", "k8s.io/apimachinery/pkg/apis/meta/v1",
		"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1", "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1",
	} {
		listed, err := exec.CommandContext(t.Context(), "go", "list", "-find", "-f", "{{.Dir}}", root).Output()
		require.NoError(t, err)
		dir := strings.TrimSpace(string(listed))
		if root == "k8s.io/api/core/v1" { // covers its whole module
			dir, root = filepath.Dir(filepath.Dir(dir)), "k8s.io/api"
		}
		require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasPrefix(entry.Name(), "types") ||
				strings.Contains(path, "imagepolicy") ||
				strings.HasSuffix(path, "_test.go") || strings.Contains(path, "generated") ||
				!strings.HasSuffix(path, ".go") {
				return err
			}
			pkg, err := filepath.Rel(dir, filepath.Dir(path))
			require.NoError(t, err)
			return read.file(path, filepath.ToSlash(filepath.Join(root, pkg)))
		}))
	}
	require.Equal(t, read.optional, optionalByComment)
	require.Equal(t, read.required, requiredByComment)
}

// commentReader collects, by definition, the fields with a comment that contradicts their tag.
type commentReader struct{ optional, required map[string][]string }

func (r commentReader) file(path, pkg string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	host, rest, _ := strings.Cut(pkg, "/")
	prefix := reverseDomain(host) + "." + strings.ReplaceAll(rest, "/", ".") + "."
	ast.Inspect(file, func(node ast.Node) bool {
		if spec, ok := node.(*ast.TypeSpec); ok {
			if body, ok := spec.Type.(*ast.StructType); ok {
				r.fields(prefix+spec.Name.Name, body)
			}
		}
		return true
	})
	return nil
}

func (r commentReader) fields(definition string, body *ast.StructType) {
	for _, f := range body.Fields.List {
		if f.Tag == nil || f.Doc == nil {
			continue
		}
		tag, _ := strconv.Unquote(f.Tag.Value)
		name, options, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		omitted := strings.Contains(options, "omitempty")
		switch {
		case !omitted && has(f.Doc, "+optional"):
			r.optional[definition] = append(r.optional[definition], name)
		case omitted && has(f.Doc, "+required"):
			r.required[definition] = append(r.required[definition], name)
		}
	}
}

func has(doc *ast.CommentGroup, marker string) bool {
	for _, c := range doc.List {
		text := strings.TrimSpace(strings.TrimPrefix(c.Text, "//"))
		if text == marker || strings.HasPrefix(text, marker+" ") {
			return true
		}
	}
	return false
}
