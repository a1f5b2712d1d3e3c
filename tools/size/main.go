// Command size reports how much each direct dependency adds to a binary: the code and data of all packages that would
// not be linked without it, including its own dependencies.
//
//	go run ./tools/size ./cmd/coxswain
//
// It reads the import graph from go list, and the size of each package from the symbols of an unstripped build. The
// column "adds" therefore excludes packages that other dependencies need as well.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// graph is the import graph of a main package.
type graph struct {
	root     string
	packages map[string]*pkg
}

// pkg is a package in the output of go list.
type pkg struct {
	ImportPath string
	Imports    []string
	ImportMap  map[string]string
	Module     *struct {
		Path           string
		Main, Indirect bool
	}
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: size MAIN-PACKAGE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "size:", err)
		os.Exit(1)
	}
}

func run(target string, out io.Writer) error {
	g, err := load(target)
	if err != nil {
		return err
	}
	weight, err := weigh(target, g)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s: code and data by direct dependency\n%10s %10s  module\n", target, "adds", "itself")
	rows := g.rows(weight)
	for _, r := range rows {
		fmt.Fprintf(out, "%7d kB %7d kB  %s\n", r.adds/1000, r.own/1000, r.module)
	}
	return nil
}

// row has the size of one module.
type row struct {
	module string
	adds   int // bytes of all packages that only this module needs
	own    int // bytes of the module's packages
}

func (g *graph) rows(weight map[string]int) []row {
	all := g.reachable("")
	var rows []row
	for _, module := range g.direct() {
		without := g.reachable(module)
		r := row{module: module}
		for path := range all {
			if !without[path] {
				r.adds += weight[path]
			}
			if g.in(path, module) {
				r.own += weight[path]
			}
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(b.adds, a.adds) })
	return rows
}

// direct returns the linked modules that our own packages import.
func (g *graph) direct() []string {
	modules := map[string]bool{}
	for _, p := range g.packages {
		if p.Module == nil || !p.Module.Main {
			continue
		}
		for _, imported := range p.Imports {
			if q := g.packages[imported]; q != nil && q.Module != nil && !q.Module.Main {
				modules[q.Module.Path] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(modules))
}

func (g *graph) in(path, module string) bool {
	p := g.packages[path]
	return p != nil && p.Module != nil && p.Module.Path == module
}

// reachable returns the packages that the main package needs if our own packages do not import the module without.
// Other dependencies can still import it.
func (g *graph) reachable(without string) map[string]bool {
	seen := map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		p := g.packages[path]
		if p == nil || seen[path] {
			return
		}
		seen[path] = true
		ours := p.Module != nil && p.Module.Main
		for _, imported := range p.Imports {
			if !ours || without == "" || !g.in(imported, without) {
				visit(imported)
			}
		}
	}
	visit(g.root)
	visit("runtime")
	return seen
}

func load(target string) (*graph, error) {
	listed, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,ImportMap,Module", target).Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	g := &graph{packages: map[string]*pkg{}}
	for decoder := json.NewDecoder(bytes.NewReader(listed)); ; {
		p := &pkg{}
		if err := decoder.Decode(p); errors.Is(err, io.EOF) {
			return g, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		for i, imported := range p.Imports {
			if mapped := p.ImportMap[imported]; mapped != "" {
				p.Imports[i] = mapped
			}
		}
		g.packages[p.ImportPath] = p
		g.root = p.ImportPath // the target comes last, after its dependencies
	}
}

// weigh builds the target with symbols, and returns the total size of the symbols of each package.
func weigh(target string, g *graph) (map[string]int, error) {
	dir, err := os.MkdirTemp("", "coxswain-size-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "binary")
	build := exec.Command("go", "build", "-trimpath", "-o", binary, target)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w: %s", err, out)
	}
	symbols, err := exec.Command("go", "tool", "nm", "-size", binary).Output()
	if err != nil {
		return nil, fmt.Errorf("go tool nm: %w", err)
	}
	weight := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(symbols))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// Fields are address, size, type and name. The types B and b are not in the file.
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || strings.EqualFold(fields[2], "b") {
			continue
		}
		size, err := strconv.Atoi(fields[1])
		if err != nil {
			continue // undefined symbols have no size
		}
		if path := g.packageOf(fields[3]); path != "" {
			weight[path] += size
		}
	}
	return weight, lines.Err()
}

// packageOf returns the package of a symbol: its name starts with the import path, as in
// "k8s.io/api/core/v1.(*Pod).Marshal" or "type:.eq.net/http.Header".
func (g *graph) packageOf(symbol string) string {
	symbol = strings.TrimPrefix(symbol, "go:itab.*")
	symbol = strings.TrimPrefix(symbol, "type:.eq.")
	path := symbol
	if i := strings.IndexAny(symbol, "[("); i >= 0 { // receivers and type arguments name packages too
		path = symbol[:i]
	}
	end := strings.LastIndexByte(path, '/') + 1
	dot := strings.IndexByte(symbol[end:], '.')
	for dot >= 0 {
		path = strings.ReplaceAll(symbol[:end+dot], "%2e", ".")
		if g.packages[path] != nil {
			return path
		}
		end += dot + 1
		dot = strings.IndexByte(symbol[end:], '.')
	}
	return ""
}
