package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A habit is a turn of phrase that is rare in other Go projects. bbolt, chi, controller-runtime, pebble, prometheus and
// tailscale stay below the limit.
type habit struct {
	name    string
	pattern *regexp.Regexp
	limit   float64 // per 1,000 words of comments
}

var habits = []habit{
	{"what, who", regexp.MustCompile(`(?i)\b(what|who|whom|whoever|whatever|whose)\b`), 1.0},
	{"those", regexp.MustCompile(`(?i)\bthose\b`), 0.8},
	{"of which", regexp.MustCompile(`(?i)\b(of|by|to|in|for|from|with|at|on|after|before|under|over) which\b`), 0.7},
	{"tell", regexp.MustCompile(`(?i)\b(tells?|told|telling)\b`), 0.2},
	{"nobody, nothing", regexp.MustCompile(`(?i)\b(nobody|somebody|everybody|nothing|anybody)\b`), 0.5},
	{"is to be", regexp.MustCompile(`(?i)\b(is|are|was|were) to (be|have|go|come|do|find|say|tell|stay|end)\b`), 0.15},
	{"but for", regexp.MustCompile(`(?i)\b(but for|for want of|as ever|anew|at all events)\b`), 0.1},
}

// limitOfStates limits the share of functions with a comment that begins with "is" or "has" instead of a verb,
// limitOfNames the share of assignments to variables with names that are not nouns.
const (
	limitOfStates = 0.08
	limitOfNames  = 0.003
)

var (
	states   = regexp.MustCompile(`^(is|are|has|have|was)$`)
	notNouns = regexp.MustCompile(`^(of|by|to|at|its|their|those|told|wanted|known|meant|most|who|whom|what|asked|` +
		`given|held|kept|gone)$`)
)

// prose counts habits in the comments and names of one package, or of its tests.
type prose struct {
	words                                 int
	habits                                [7]int
	documented, states, assigned, notNoun int
	places                                []string
}

// TestProse_ReadsLikeOtherProjects checks the English of each package and of its tests. prose.txt lists the packages
// that exceed a limit; it may only become shorter.
//
//	PROSE=apiserver/authn go test ./test -run TestProse -v    # the places in one package
func TestProse_ReadsLikeOtherProjects(t *testing.T) {
	t.Parallel()
	packages := measureProse(t)
	require.Greater(t, len(packages), 200)
	if name := os.Getenv("PROSE"); name != "" {
		for _, name := range []string{name, name + " tests"} {
			if p := packages[name]; p != nil {
				t.Logf("%s: over: %v\n%s", name, p.over(limitFactor(name)), strings.Join(p.places, "\n"))
			}
		}
	}
	listed := readProse(t)
	maps.DeleteFunc(listed, func(name string, _ bool) bool { return isDocument(name) })
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		over := packages[name].over(limitFactor(name))
		if len(over) > 0 && !listed[name] {
			t.Errorf("%s: %v; PROSE=%s lists the places", name, over, strings.TrimSuffix(name, " tests"))
		}
		if len(over) == 0 && listed[name] {
			t.Errorf("%s is within the limits: take it out of prose.txt", name)
		}
		delete(listed, name)
	}
	require.Empty(t, listed, "prose.txt names packages that do not exist")
	var tree, tests prose
	for name, p := range packages {
		if strings.HasSuffix(name, " tests") {
			tests.add(p)
		} else {
			tree.add(p)
		}
	}
	require.Empty(t, tree.over(1), "all packages together")
	require.Empty(t, tests.over(2), "all tests together")
}

// add adds the counts of another package.
func (p *prose) add(other *prose) {
	p.words += other.words
	for i, n := range other.habits {
		p.habits[i] += n
	}
	p.documented, p.states = p.documented+other.documented, p.states+other.states
	p.assigned, p.notNoun = p.assigned+other.assigned, p.notNoun+other.notNoun
}

// limitFactor returns the factor by which a package may exceed the limits, which are meant for a whole tree. Tests have
// twice as much room.
func limitFactor(name string) float64 {
	if strings.HasSuffix(name, " tests") {
		return 4
	}
	return 2
}

// over returns the habits that occur more than factor times as often as the limit. Two occurrences are always allowed,
// since packages are small.
func (p *prose) over(factor float64) []string {
	var over []string
	check := func(name string, n, of int, limit float64) {
		if n > 2 && float64(n) > factor*limit*float64(of) {
			over = append(over, fmt.Sprintf("%s: %d in %d, at most %.1f", name, n, of, factor*limit*float64(of)))
		}
	}
	for i, h := range habits {
		check(h.name, p.habits[i], p.words, h.limit/1000)
	}
	check("functions described by a state", p.states, p.documented, limitOfStates)
	check("variables that are no nouns", p.notNoun, p.assigned, limitOfNames)
	return over
}

// measureProse counts all Go files that are not generated, by package; "a/b tests" are the tests of a/b.
func measureProse(t *testing.T) map[string]*prose {
	packages := map[string]*prose{}
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != ".." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin" ||
			entry.Name() == "testdata"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go"):
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		name := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../")
		if strings.HasSuffix(path, "_test.go") {
			name += " tests"
		}
		if packages[name] == nil {
			packages[name] = &prose{}
		}
		packages[name].count(set, file)
		return nil
	}))
	return packages
}

// count adds the counts of a file.
func (p *prose) count(set *token.FileSet, file *ast.File) {
	place := func(node ast.Node, habit, text string) {
		position := set.Position(node.Pos())
		p.note(strings.TrimPrefix(filepath.ToSlash(position.Filename), "../"), position.Line, habit, text)
	}
	for _, group := range file.Comments {
		for _, comment := range group.List {
			text := strings.TrimPrefix(comment.Text, "//")
			p.words += len(strings.Fields(text))
			p.countHabits(text, func(habit string) { place(comment, habit, text) })
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncDecl:
			if words := strings.Fields(node.Doc.Text()); len(words) > 1 && words[0] == node.Name.Name {
				p.documented++
				if states.MatchString(words[1]) {
					p.states++
					place(node.Doc, "states", strings.Join(words[:min(len(words), 14)], " "))
				}
			}
		case *ast.AssignStmt:
			for _, target := range node.Lhs {
				p.assign(target, place)
			}
		}
		return true
	})
}

// note records where a habit occurs.
func (p *prose) note(file string, line int, habit, text string) {
	p.places = append(p.places, fmt.Sprintf("%s:%d: [%s] %s", file, line, habit, text))
}

// countHabits adds the habits of a text, and calls place with the name of each that occurs.
func (p *prose) countHabits(text string, place func(habit string)) {
	for i, h := range habits {
		if n := len(h.pattern.FindAllString(text, -1)); n > 0 {
			p.habits[i] += n
			place(h.name)
		}
	}
}

// assign counts the variable or field that an assignment changes.
func (p *prose) assign(target ast.Expr, place func(ast.Node, string, string)) {
	var name string
	switch target := target.(type) {
	case *ast.Ident:
		name = target.Name
	case *ast.SelectorExpr:
		name = target.Sel.Name
	default:
		return
	}
	p.assigned++
	if notNouns.MatchString(name) {
		p.notNoun++
		place(target, "name", name)
	}
}

// readProse returns the lines of prose.txt, without its comments.
func readProse(t *testing.T) map[string]bool {
	text, err := os.ReadFile("prose.txt")
	require.NoError(t, err)
	listed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			listed[line] = true
		}
	}
	return listed
}
