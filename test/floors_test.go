// Package test checks the repository as a whole. This file checks that its floors (docs/architecture.md) import each
// other in one direction only. The black-box tests are in e2e.
package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/coxswain-dev/coxswain/"

// floors lists the top folders, and packages of internal, that each of them may import besides itself. A new folder
// must be added here first.
var floors = map[string][]string{
	"api":                           {"internal/limits"},
	"internal/backoff":              {},
	"internal/kubeversion":          {},
	"internal/loglines":             {},
	"internal/series":               {},
	"internal/series/seriestest":    {},
	"internal/zpages":               {},
	"storage":                       {"internal/backoff", "internal/series"},
	"internal/limits":               {},
	"internal/quota":                {"internal/limits"},
	"internal/clock/quiescence":     {},
	"internal/clock/virtualtime":    {},
	"internal/client/delegatedauth": {},
	"internal/client/events":        {"internal/backoff"},
	"internal/client/informer":      {"internal/backoff"},
	"internal/client/manifests":     {},
	"internal/client/workqueue":     {"internal/backoff", "internal/clock/virtualtime"},
	"apiserver": with(clocks, "api", "storage", "internal/backoff", "internal/kubeversion", "internal/quota",
		"internal/limits", "internal/series", "internal/zpages"),
	"controllers": with(clocks, "internal/backoff", "internal/client/events", "internal/client/informer",
		"internal/client/workqueue", "internal/limits", "internal/quota", "internal/series"),
	"scheduler": with(clocks, "internal/backoff", "internal/client/events", "internal/client/informer",
		"internal/limits"),
	"network": with(clocks, "internal/backoff", "internal/client/delegatedauth", "internal/client/events",
		"internal/client/informer", "internal/client/workqueue", "internal/limits", "internal/series"),
	"node": with(clocks, "network", "internal/backoff", "internal/client/delegatedauth", "internal/client/events",
		"internal/client/informer", "internal/client/workqueue", "internal/kubeversion", "internal/limits",
		"internal/loglines", "internal/zpages"),
	"kubectl-lite": {"internal/backoff", "internal/limits"},
	"testenv": with(clocks, "api", "storage", "apiserver", "controllers", "scheduler", "node", "network",
		"kubectl-lite", "internal/client/manifests"),
	"cmd": with(clocks, "api", "storage", "apiserver", "controllers", "scheduler", "node", "network", "kubectl-lite",
		"internal/client/delegatedauth", "internal/client/manifests", "internal/loglines", "internal/zpages"),
	"test":     {"network"},
	"tools":    {"internal/kubeversion"},
	"examples": {"testenv"},
	".":        {},
}

// clocks are the packages for tests with a clock that is moved by hand.
var clocks = []string{"internal/clock/quiescence", "internal/clock/virtualtime"}

func with(some []string, more ...string) []string { return slices.Concat(some, more) }

// testFloors lists additional imports of tests, and of packages for tests: a control plane to run against, the API's
// other clients, to run beside the one under test, and the version that all of them report.
var testFloors = []string{"testenv", "controllers", "scheduler", "node", "internal/clock/virtualtime",
	"internal/kubeversion", "internal/series/seriestest"}

// apiFront are the packages of api that other folders may import. Only code that assembles a server, and tests, may
// import api/builtin; the groups and the kit are internal to api.
var apiFront = []string{"api", "api/cel", "api/customresource", "api/discoverydocs", "api/equal", "api/field",
	"api/flowcontrol/mandatory", "api/naming", "api/openapi", "api/structural"}

// withoutStore are the packages of apiserver that decide by the objects they receive, and neither read nor store any.
var withoutStore = []string{"apiserver/authz", "apiserver/flowcontrol", "apiserver/pods", "apiserver/proxy",
	"apiserver/strategy"}

// etcdOnly is the only package that imports etcd, besides cmd and tests.
const etcdOnly = "storage/etcd"

// banned are imports that no file may have; bannedButTests are allowed in tests.
var (
	banned         = []string{"k8s.io/apiserver", "k8s.io/kubernetes"}
	bannedButTests = []string{"sigs.k8s.io/controller-runtime", "github.com/stretchr/testify", "testing"}
)

// Folders that take the time from a clock.Clock parameter, and the functions that they may not call.
var (
	clocked = []string{"controllers", "scheduler", "node", "network", "internal/client/events",
		"internal/client/delegatedauth"}
	wallClock = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}
)

// breaches returns the violations of the floors under root, one line each.
func breaches(root string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || nestedModule(path)) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		here, err := check(root, path)
		found = append(found, here...)
		return err
	})
	return found, err
}

func nestedModule(dir string) bool {
	matches, _ := filepath.Glob(filepath.Join(dir, "go.mod")) // the pattern is well-formed
	return len(matches) > 0
}

// check reads one file and returns its violations.
func check(root, path string) ([]string, error) {
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if pinned(file) {
		return nil, nil
	}
	floor, isTest := topFolder(filepath.ToSlash(rel)), strings.HasSuffix(path, "_test.go")
	if _, listed := floors[floor]; !listed {
		return []string{fmt.Sprintf("%s: the folder %s has no place among the floors", rel, floor)}, nil
	}
	var found []string
	breach := func(at token.Pos, format string, args ...any) {
		found = append(found, fmt.Sprintf("%s:%d: %s", rel, set.Position(at).Line, fmt.Sprintf(format, args...)))
	}
	for _, spec := range file.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
		if why := forbidden(filepath.ToSlash(rel), imported, isTest); why != "" {
			breach(spec.Pos(), "%s", why)
		}
	}
	if slices.Contains(clocked, floor) && !forTests(filepath.ToSlash(rel)) {
		for _, call := range wallClockUses(file) {
			breach(call.Pos(), "time.%s: take the time from a clock.Clock", call.Sel.Name)
		}
	}
	return found, nil
}

// pinned reports whether the file only holds dependencies in go.mod and is never built.
func pinned(file *ast.File) bool {
	return len(file.Comments) > 0 && file.Comments[0].List[0].Text == "//go:build pin"
}

// topFolder returns the first element of a file's path, or "." for a file at the root. Each package of internal is a
// floor of its own.
func topFolder(file string) string {
	folder, _, nested := strings.Cut(file, "/")
	switch {
	case !nested:
		return "."
	case folder == "internal":
		return path.Dir(file)
	}
	return folder
}

// forbidden returns the reason why the file may not import the path, or "".
func forbidden(file, imported string, isTest bool) string {
	floor, forTests := topFolder(file), forTests(file)
	for _, b := range banned {
		if within(imported, b) {
			return imported + ": imported nowhere in this project"
		}
	}
	for _, b := range bannedButTests {
		if within(imported, b) && !forTests {
			return imported + ": for tests only"
		}
	}
	if within(imported, "go.etcd.io") && path.Dir(file) != etcdOnly && floor != "cmd" && !forTests {
		return imported + ": only " + etcdOnly + " imports etcd"
	}
	ours, ok := strings.CutPrefix(imported, module)
	if !ok {
		return ""
	}
	above := topFolder(ours + "/")
	switch {
	case !forTests && isForTests(ours):
		return ours + ": for tests only"
	case forTests && isForTests(ours):
		return ""
	case above == "api" && floor != "api" && !slices.Contains(apiFront, ours) && !assembles(floor, ours, isTest):
		return fmt.Sprintf("%s may not import %s: it is api's own", floor, ours)
	case floor == "api" && !isTest && !groupMay(path.Dir(file), ours):
		return fmt.Sprintf("%s may not import %s: of the groups, only core", path.Dir(file), ours)
	case above == "storage" && slices.Contains(withoutStore, path.Dir(file)) && !isTest:
		return fmt.Sprintf("%s may not import storage: it is given the objects", path.Dir(file))
	case above == floor, slices.Contains(floors[floor], above):
	case forTests && slices.Contains(testFloors, above):
	default:
		return fmt.Sprintf("%s may not import %s", floor, above)
	}
	return ""
}

// forTests reports whether a file is not part of a shipped package.
func forTests(file string) bool {
	return strings.HasSuffix(file, "_test.go") || topFolder(file) == "testenv" || isForTests(path.Dir(file))
}

// isForTests reports whether a package is for tests by its own name, like net/http/httptest, or by a parent folder's.
func isForTests(pkg string) bool { return strings.Contains(pkg+"/", "test/") }

// groupMay reports whether a package of api may import another one: the groups may import the kit, podspec and core,
// and the definitions of custom resources their schemas.
func groupMay(folder, imported string) bool {
	assembly := folder == "api/builtin" || folder == "api/kindtest"
	return assembly || topFolder(imported+"/") != "api" || slices.Contains(apiFront, imported) ||
		within(imported, "api/kit") || imported == "api/podspec" || imported == "api/core" ||
		imported == "api/structural"
}

// assembles reports whether a folder that assembles a server imports a server's kinds.
func assembles(floor, imported string, isTest bool) bool {
	return imported == "api/builtin" && (isTest || floor == "cmd" || floor == "testenv")
}

func within(imported, path string) bool {
	return imported == path || strings.HasPrefix(imported, path+"/")
}

// wallClockUses returns the mentions of functions of package time that read or wait for the machine's clock, called or
// passed as values.
func wallClockUses(file *ast.File) []*ast.SelectorExpr {
	name := "time"
	imported := false
	for _, spec := range file.Imports {
		if spec.Path.Value == `"time"` {
			imported = true
			if spec.Name != nil {
				name = spec.Name.Name
			}
		}
	}
	if !imported {
		return nil
	}
	var uses []*ast.SelectorExpr
	ast.Inspect(file, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := selector.X.(*ast.Ident); ok && x.Name == name && slices.Contains(wallClock, selector.Sel.Name) {
			uses = append(uses, selector)
		}
		return true
	})
	return uses
}
