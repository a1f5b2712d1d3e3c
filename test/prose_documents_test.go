package test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// documentFactor is how far a document may be above the limits of comments.
const documentFactor = 2

// TestProse_DocumentsReadLikeOtherProjects checks the English of each document. prose.txt lists the documents that
// exceed a limit, by their paths; it may only become shorter.
//
//	PROSE=docs/audit.md go test ./test -run TestProse -v    # the places in one document
func TestProse_DocumentsReadLikeOtherProjects(t *testing.T) {
	t.Parallel()
	documents := measureDocuments(t)
	require.Greater(t, len(documents), 30)
	if p := documents[os.Getenv("PROSE")]; p != nil {
		t.Logf("over: %v\n%s", p.over(documentFactor), strings.Join(p.places, "\n"))
	}
	listed := readProse(t)
	maps.DeleteFunc(listed, func(name string, _ bool) bool { return !isDocument(name) })
	for _, name := range slices.Sorted(maps.Keys(documents)) {
		over := documents[name].over(documentFactor)
		if len(over) > 0 && !listed[name] {
			t.Errorf("%s: %v; PROSE=%s lists the places", name, over, name)
		}
		if len(over) == 0 && listed[name] {
			t.Errorf("%s is within the limits: take it out of prose.txt", name)
		}
		delete(listed, name)
	}
	require.Empty(t, listed, "prose.txt names documents that do not exist")
}

// Code is no prose.
func TestProse_CountsNoCodeInDocuments(t *testing.T) {
	t.Parallel()
	p := &prose{}
	p.countDocument("x.md", "Who `what who`.\n\n    who who\n\n- one\n\n  ```\n  who\n  ```\n\n      who\n\n| who | `who` |\n")
	require.Equal(t, 2, p.habits[0], p.places)
	require.Equal(t, 4, p.words) // the full stop is one; dashes and bars are not
}

func isDocument(name string) bool { return strings.HasSuffix(name, ".md") }

// measureDocuments counts in all Markdown files, by path.
func measureDocuments(t *testing.T) map[string]*prose {
	documents := map[string]*prose{}
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != ".." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin" ||
			entry.Name() == "testdata"):
			return filepath.SkipDir
		case entry.IsDir() || !isDocument(path):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(filepath.ToSlash(path), "../")
		documents[name] = &prose{}
		documents[name].countDocument(name, string(source))
		return nil
	}))
	return documents
}

// countDocument adds the text of a Markdown file, without code blocks, inline code and the targets of links.
func (p *prose) countDocument(name, source string) {
	block := false
	for i, line := range strings.Split(source, "\n") {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		block = block != fence
		if fence || block || strings.HasPrefix(line, "    ") {
			continue
		}
		text := quoted.ReplaceAllString(target.ReplaceAllString(line, ""), "")
		for _, word := range strings.Fields(text) {
			if strings.Trim(word, "|-") != "" {
				p.words++
			}
		}
		p.countHabits(text, func(habit string) { p.note(name, i+1, habit, line) })
	}
}
