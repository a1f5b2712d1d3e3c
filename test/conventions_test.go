package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// exceptions is the list of packages with log lines and errors that do not follow the conventions of CONTRIBUTING.md
// yet.
const exceptions = "conventions.txt"

// messagesOfKubernetes are the packages with Kubernetes' own error texts, which users see in conditions and on the
// command line.
var messagesOfKubernetes = []string{"apiserver/admission/policy", "controllers/podautoscaler", "kubectl-lite",
	"kubectl-lite/session"}

// TestConventions_LogsAndErrors checks all packages that conventions.txt does not list for the conventions of logs and
// errors. The list may only become shorter: a package that follows them must be removed from it.
func TestConventions_LogsAndErrors(t *testing.T) {
	t.Parallel()
	listed := map[string]bool{}
	text, err := os.ReadFile(exceptions)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			listed[line] = true
		}
	}
	found := map[string][]string{} // by package
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipOtherModules(path, entry)
		}
		name := strings.TrimPrefix(filepath.ToSlash(path), "../")
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		breaches, err := unconventional(name, source)
		folder := filepath.ToSlash(filepath.Dir(name))
		found[folder] = append(found[folder], breaches...)
		return err
	}))
	require.Greater(t, len(found), 150)
	for _, folder := range slices.Sorted(maps.Keys(found)) {
		switch breaches := found[folder]; {
		case !listed[folder] && len(breaches) > 0:
			t.Errorf("CONTRIBUTING.md, \"Logs and errors\", has the conventions:\n%s", strings.Join(breaches, "\n"))
		case listed[folder] && len(breaches) == 0:
			t.Errorf("%s follows the conventions: remove it from test/%s", folder, exceptions)
		case listed[folder]:
			t.Logf("%s has %d places that do not follow the conventions:\n%s", folder, len(breaches),
				strings.Join(breaches, "\n"))
		}
	}
	for folder := range listed {
		require.Contains(t, found, folder, "%s is listed in test/%s, but has no code", folder, exceptions)
	}
}

func TestConventions_FindsBreaches(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`log.Warn("cannot list pods", "err", err)`:                                   "",
		`s.options.Log.Error("failed to read", slog.Any("err", err))`:                "",
		`log.With("err", err).Warn("cannot list pods")`:                              "",
		`log.Log(ctx, level, "cannot list pods", "err", err)`:                        "",
		`log.Info("ready", "pod", key)`:                                              "",
		`log.Warn("cannot list pods", "error", err)`:                                 `the key of an error is "err"`,
		`log.Warn("cannot list pods", slog.Any("error", err))`:                       `the key of an error is "err"`,
		`slog.WarnContext(ctx, "cannot list pods", "error", err)`:                    `the key of an error is "err"`,
		`log.Log(ctx, level, "cannot list pods", "error", err)`:                      `the key of an error is "err"`,
		`log.Warn("listing pods", "err", err)`:                                       `"failed to …" or "cannot …"`,
		`log.Log(ctx, level, "conflict", "err", err)`:                                `"failed to …" or "cannot …"`,
		`log.Warn("cannot write pod", "namespace", p.Namespace, "name", p.Name)`:     `an object is one value`,
		`log.Warn("cannot write pod", "podName", p.Name)`:                            `a pod's key is "pod"`,
		`x.Error("no log of ours", "error", err)`:                                    "",
		`return fmt.Errorf("create node %s: %w", n, err)`:                            "",
		`return errors.New("missing name")`:                                          "",
		`return fmt.Errorf("bring up: %w", err)`:                                     "",
		`return fmt.Errorf("creating node %s: %w", n, err)`:                          `"creating": the imperative`,
		`return fmt.Errorf("while creating node %s: %w", n, err)`:                    `"while": the imperative`,
		`return fmt.Errorf("failed to create node: %w", err)`:                        "is an error already",
		`return errors.New("unable to create node")`:                                 "is an error already",
		`return fmt.Errorf("Create node: %w", err)`:                                  "",
		"return fmt.Errorf(`error creating %s`, n)":                                  "is an error already",
		`return fmt.Errorf("could not create node: %w", err)`:                        "is an error already",
		`return fmt.Errorf("%s: %w", n, err)`:                                        "",
		`return apierrors.NewBadRequest("failed to decode: what Kubernetes writes")`: "",
	} {
		found, err := unconventional("a.go", []byte("package a\n\nfunc f() error {\n"+body+"\n}\n"))
		require.NoError(t, err, body)
		if want == "" {
			require.Empty(t, found, body)
		} else {
			require.Len(t, found, 1, body)
			require.Contains(t, found[0], want)
			require.Contains(t, found[0], "a.go:4: ")
		}
	}
}

// unconventional returns the places of a file with log lines or errors that break the conventions.
func unconventional(name string, source []byte) ([]string, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil || pinned(file) {
		return nil, err
	}
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		reason := wrongLog(call)
		if reason == "" && !slices.Contains(messagesOfKubernetes, path.Dir(name)) {
			reason = wrongError(call)
		}
		if reason != "" {
			found = append(found, fmt.Sprintf("%s:%d: %s", name, set.Position(call.Pos()).Line, reason))
		}
		return true
	})
	return found, nil
}

var (
	// messageAt is the place of the message among the arguments of a method of slog.Logger, or of a function of slog.
	messageAt = map[string]int{"Debug": 0, "Info": 0, "Warn": 0, "Error": 0, "DebugContext": 1, "InfoContext": 1,
		"WarnContext": 1, "ErrorContext": 1, "Log": 2, "LogAttrs": 2, "With": -1}
	failure  = regexp.MustCompile(`^(?:failed to|cannot) `)
	aPodsKey = regexp.MustCompile(`^(?i:pod_?(?:name|key|ref))$`)
)

// wrongLog returns why a call of slog is against the conventions, or "".
func wrongLog(call *ast.CallExpr) string {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !isLog(method.X) {
		return ""
	}
	index, ok := messageAt[method.Sel.Name]
	if !ok || len(call.Args) <= index {
		return ""
	}
	keys := keysOf(call.Args[index+1:])
	message := ""
	if index >= 0 {
		message, ok = literal(call.Args[index])
	}
	switch {
	case slices.Contains(keys, "error"):
		return `the key of an error is "err"`
	case slices.Contains(keys, "namespace") && slices.Contains(keys, "name"):
		return `an object is one value, namespace/name, under the name of its kind`
	case slices.ContainsFunc(keys, aPodsKey.MatchString):
		return `a pod's key is "pod", its value namespace/name`
	case index >= 0 && ok && slices.Contains(keys, "err") && !failure.MatchString(message):
		return fmt.Sprintf(`%q: a message with an error begins with "failed to …" or "cannot …"`, message)
	}
	return ""
}

// isLog reports whether an expression is slog, or a logger by its name.
func isLog(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "slog" || strings.EqualFold(x.Name, "log") || strings.EqualFold(x.Name, "logger")
	case *ast.SelectorExpr:
		return isLog(x.Sel)
	case *ast.CallExpr: // log.With(…), env.Log()
		return isLog(x.Fun) || isChained(x.Fun)
	}
	return false
}

func isChained(x ast.Expr) bool {
	method, ok := x.(*ast.SelectorExpr)
	return ok && strings.HasPrefix(method.Sel.Name, "With") && isLog(method.X)
}

// keysOf returns the keys among the arguments that follow a message.
func keysOf(args []ast.Expr) (keys []string) {
	for i := 0; i < len(args); i++ {
		if attribute, ok := args[i].(*ast.CallExpr); ok {
			selector, ok := attribute.Fun.(*ast.SelectorExpr)
			if ok && isLog(selector.X) && len(attribute.Args) > 0 {
				if key, ok := literal(attribute.Args[0]); ok {
					keys = append(keys, key)
				}
				continue
			}
		}
		if key, ok := literal(args[i]); ok {
			keys = append(keys, key)
		}
		i++ // its value
	}
	return keys
}

// literal returns the value of a string, or of the first in a sum of strings.
func literal(x ast.Expr) (string, bool) {
	if sum, ok := x.(*ast.BinaryExpr); ok && sum.Op == token.ADD {
		x = sum.X
	}
	text, ok := x.(*ast.BasicLit)
	if !ok || text.Kind != token.STRING {
		return "", false
	}
	value, err := strconv.Unquote(text.Value)
	return value, err == nil
}

var (
	already = regexp.MustCompile(`^(?i:failed to|unable to|could not|couldn't|error (?:while )?\w+ing) `)
	gerund  = regexp.MustCompile(`^(while|when|[a-z]+ing) .*: %w`)
	noun    = regexp.MustCompile(`^(?:bring|string|ring|ping|spring|thing|nothing|anything|something|everything|during) `)
)

// wrongError returns why the text of an error is against the conventions, or "".
func wrongError(call *ast.CallExpr) string {
	function, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return ""
	}
	pkg, ok := function.X.(*ast.Ident)
	if !ok || pkg.Name+"."+function.Sel.Name != "fmt.Errorf" && pkg.Name+"."+function.Sel.Name != "errors.New" {
		return ""
	}
	text, ok := literal(call.Args[0])
	if !ok {
		return ""
	}
	if already.MatchString(text) {
		return fmt.Sprintf("%q: it is an error already: begin with the operation, such as %q", text, "create node %s: %w")
	}
	if m := gerund.FindStringSubmatch(text); m != nil && !noun.MatchString(text) {
		return fmt.Sprintf("%q: the imperative comes first, such as %q", m[1], "create node %s: %w")
	}
	return ""
}
