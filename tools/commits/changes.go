package main

import (
	"path"
	"regexp"
	"strings"
)

// followsMove is a package clause or an import of Go: moving a package changes such lines in the files that use it.
var followsMove = regexp.MustCompile(`^package \w+$|^(?:import )?(?:[\w.]+ )?"[\w./-]+"$`)

// changedLines returns how many lines of code a patch changes. Documents, test data and checksums are not code, nor are
// empty lines and comments. A line that is taken from one place and put unchanged into another has been moved: it does
// not count, and neither do the imports and package clauses that follow it. A line that becomes another counts once.
func changedLines(patch string) int {
	moved := map[string]int{} // of a line: how often it was added, less how often it was removed
	code, goFile := false, false
	for line := range strings.Lines(patch) {
		switch {
		case strings.HasPrefix(line, "diff --git "):
			_, name, _ := strings.Cut(strings.TrimSpace(line), " b/")
			code, goFile = isCode(name), strings.HasSuffix(name, ".go")
			continue
		case strings.HasPrefix(line, "+++ "), strings.HasPrefix(line, "--- "), !code:
			continue
		case len(line) == 0 || line[0] != '+' && line[0] != '-':
			continue
		}
		text := strings.TrimSpace(line[1:])
		if text == "" || isComment(text, goFile) || goFile && followsMove.MatchString(text) {
			continue
		}
		if line[0] == '+' {
			moved[text]++
		} else {
			moved[text]--
		}
	}
	added, removed := 0, 0
	for _, n := range moved {
		added, removed = added+max(n, 0), removed+max(-n, 0)
	}
	return max(added, removed)
}

// isCode reports whether a file's lines need a reason to change.
func isCode(name string) bool {
	folders := strings.Split(path.Dir(name), "/")
	for _, f := range folders {
		if f == "testdata" || f == "docs" {
			return false
		}
	}
	return path.Ext(name) != ".md" && path.Base(name) != "go.sum"
}

func isComment(text string, goFile bool) bool {
	if goFile {
		return strings.HasPrefix(text, "//")
	}
	return strings.HasPrefix(text, "#") && !strings.HasPrefix(text, "#!")
}
