package session

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/text/encoding/unicode"
)

var aliased = "a: &a " + strings.Repeat("x", 50_000) + "\nb: [" + strings.Repeat("*a,", 20_000) + "]\n"

func TestDocuments_AreReadOneByOneAndLimitedInSize(t *testing.T) {
	t.Parallel()
	read, err := io.ReadAll(newDocuments(strings.NewReader("a: 1\n---\nb: &b 2\nc: *b\n---\nd: 3\n")))
	require.NoError(t, err)
	assert.Equal(t, "a: 1\n\n---\n{b: 2, c: 2}\n\n---\nd: 3\n", string(read))

	read, err = io.ReadAll(newDocuments(strings.NewReader(`{"a": 1}{"b": 2}`)))
	require.NoError(t, err)
	assert.Equal(t, `{"a": 1}{"b": 2}`, strings.TrimSpace(string(read)))

	wide, err := unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewEncoder().String("a: 1\n---\nb: 2\n")
	require.NoError(t, err)
	read, err = io.ReadAll(newDocuments(strings.NewReader(wide)))
	require.NoError(t, err)
	assert.Equal(t, "a: 1\n\n---\nb: 2\n", string(read))

	documents := newDocuments(strings.NewReader("a: 1\n---\n" + aliased + "---\nb: 2\n"))
	for range 2 {
		read, err = io.ReadAll(documents)
		assert.ErrorContains(t, err, "exceeds the limit")
		assert.NotContains(t, string(read), "b: 2", "a reader may go on after an error")
	}
}

func TestCheckFiles_RejectsLargeAliases(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	require.NoError(t, os.Mkdir(below, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "good.yaml"), []byte("a: &a 1\nb: *a\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "text.txt"), []byte(aliased), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(below, "bad.yaml"), []byte("a: 1\n---\n"+aliased), 0o600))

	require.NoError(t, CheckFiles([]string{dir, filepath.Join(dir, "none.yaml")}, false))
	require.ErrorContains(t, CheckFiles([]string{dir}, true), "bad.yaml: the document exceeds the limit")
	require.ErrorContains(t, CheckFiles([]string{filepath.Join(dir, "*.txt")}, false), "text.txt")
}
