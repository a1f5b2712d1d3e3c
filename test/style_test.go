package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// longest is the maximum number of columns of a line; a tab counts as tabWidth.
const (
	longest  = 120
	tabWidth = 4
)

var (
	// freeSubject is a sentence that begins with a free "who" or "what" as its subject ("Who is late waits.").
	// Questions may begin so.
	freeSubject = regexp.MustCompile(`(?:^|[.;:]\s+|\n\n)(?:Who|What)(?:ever)?\s+(?:` + verbs + `)\b[^.:;?]*(?:[.;]|$)`)
	person      = regexp.MustCompile(`(?i)\b(?:he|him|his|himself|she|her|hers|herself)\b`)
	target      = regexp.MustCompile(`\]\([^)]*\)|<?https?://\S+`)
	isComment   = regexp.MustCompile(`^\s*//`)
	pair        = regexp.MustCompile(`^\t+"[^"]*":\s+"[^"]*",$`)
	skip        = regexp.MustCompile(`\bt\.Skipf?\("([^"]*)"`)
	code        = regexp.MustCompile("`[^`]*`|\"[^\"]*\"")
)

const verbs = `is|are|was|were|has|have|had|does|do|did|can|may|must|should|will|would|asks|begins|brings|calls|comes|` +
	`gets|gives|goes|holds|keeps|knows|leads|leaves|looks|loses|makes|needs|opens|owns|reads|runs|sees|sends|stands|` +
	`starts|stops|takes|uses|waits|wants|writes`

// TestStyle_LinesEndAndSentencesHaveSubjects checks the part of the house style that regular expressions can check, in
// code and documents: the length of lines, subjects of sentences, and "it" for programs.
func TestStyle_LinesEndAndSentencesHaveSubjects(t *testing.T) {
	t.Parallel()
	files := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel("..", path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		switch {
		case d.IsDir() && (name == "." || !strings.HasPrefix(d.Name(), ".") && name != "bin"):
			return nil
		case strings.HasSuffix(name, ".go"):
			files++
			source, err := os.ReadFile(path)
			require.NoError(t, err)
			checkGo(t, name, string(source))
		case strings.HasSuffix(name, ".md"):
			files++
			source, err := os.ReadFile(path)
			require.NoError(t, err)
			checkMarkdown(t, name, string(source))
		}
		if d.IsDir() {
			return filepath.SkipDir
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, files, 300)
}

// The expressions match their targets, and do not match similar text.
func TestStyle_Expressions(t *testing.T) {
	t.Parallel()
	for text, free := range map[string]bool{
		"Who is late waits.":                           true,
		"All wait. What\ncomes first is served":        true,
		"Who is it? It is the leader.":                 false,
		"What a server keeps of it.":                   false,
		"Nobody knows who is the leader.":              false,
		"The order of events: Who leads is written.":   true,
		"It reports what is wrong, and who is to mend": false,
	} {
		require.Equal(t, free, freeSubject.MatchString(text), text)
	}
	require.True(t, person.MatchString("and his queue"))
	require.False(t, person.MatchString("there, the history of others"))
	require.Equal(t, 11, columns("\t\ta ä"))
}

// checkGo reports lines that are too long, skips without a mark and comments that break the style. Data may be long:
// raw strings, rows of two strings, and in tests every line with a string.
func checkGo(t *testing.T, name, source string) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return // test data of nested modules may not parse
	}
	raw := map[int]bool{} // lines
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, "`") {
			for line := set.Position(lit.Pos()).Line; line <= set.Position(lit.End()).Line; line++ {
				raw[line] = true
			}
		}
		return true
	})
	for i, line := range strings.Split(source, "\n") {
		if isComment.MatchString(line) {
			line = target.ReplaceAllString(line, "")
		}
		line, _, _ = strings.Cut(line, " //nolint")
		data := raw[i+1] || pair.MatchString(line) || strings.HasSuffix(name, "_test.go") && strings.Contains(line, `"`)
		if n := columns(line); n > longest && !data {
			t.Errorf("%s:%d: the line has %d columns", name, i+1, n)
		}
		if found := skip.FindStringSubmatch(line); found != nil && !strings.HasPrefix(found[1], "SKIPPED: ") {
			t.Errorf("%s:%d: %q does not begin with SKIPPED, which is looked for in the output of tests", name, i+1, found[1])
		}
	}
	for _, comment := range file.Comments {
		checkProse(t, name, set.Position(comment.Pos()).Line, comment.Text())
	}
}

// checkMarkdown reports the same in a document's prose: not in tables, blocks of code and targets of links.
func checkMarkdown(t *testing.T, name, source string) {
	prose := strings.Split(source, "\n")
	fenced := false
	for i, line := range prose {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		fenced = fenced != fence
		if fence || fenced || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ") {
			prose[i] = ""
			continue
		}
		prose[i] = target.ReplaceAllString(line, "")
		if n := columns(prose[i]); n > longest {
			t.Errorf("%s:%d: the line has %d columns", name, i+1, n)
		}
	}
	checkProse(t, name, 1, strings.Join(prose, "\n"))
}

// checkProse reports sentences of a text that begins at a line.
func checkProse(t *testing.T, name string, line int, text string) {
	text = code.ReplaceAllStringFunc(text, func(quoted string) string {
		return "_" + strings.Repeat("\n", strings.Count(quoted, "\n"))
	})
	report := func(at []int, rule string) {
		found := strings.TrimSpace(text[at[0]:at[1]])
		t.Errorf("%s:%d: %s: %q", name, line+strings.Count(text[:at[0]], "\n"), rule, found)
	}
	for _, span := range freeSubject.FindAllStringIndex(text, -1) {
		report(span, "a sentence has no subject")
	}
	for _, span := range person.FindAllStringIndex(text, -1) {
		report(span, `a program is "it", and people are "they"`)
	}
}

// columns returns the width of a line.
func columns(line string) int {
	return utf8.RuneCountInString(line) + (tabWidth-1)*strings.Count(line, "\t")
}
