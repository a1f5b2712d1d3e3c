package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// In a list that has rotted, a mutant is no mutant: its place has moved, or nothing turns it on.
func TestMutants_FitTheCodeThatTheyMutate(t *testing.T) {
	t.Chdir("../..")
	names := map[string]bool{}
	for _, s := range suites {
		for _, m := range s.mutants {
			assert.False(t, names[m.name], "two mutants are named %s", m.name)
			names[m.name] = true
			assert.Regexp(t, `\bmutated\b`, m.text, m.name)
		}
	}
	_, err := writeOverlay(t.TempDir(), suites)
	require.NoError(t, err)
	list, err := os.ReadFile("test/mutants/survivors.txt")
	require.NoError(t, err)
	survivors := strings.Fields(string(list))
	assert.True(t, slices.IsSorted(survivors), "survivors.txt is not sorted")
	for _, name := range survivors {
		assert.True(t, names[name], "survivors.txt lists %s, which is no mutant", name)
	}
}

func TestMutate_RefusesTextsThatAreMissingAmbiguousOrOverlap(t *testing.T) {
	t.Parallel()
	source := []byte("package x\n\nif a && b {\n}\n\nif b && c {\n}\n")
	for want, mutants := range map[string][]mutant{
		"mutant one occurs 0 times": {{name: "one", original: "d"}},
		"mutant one occurs 2 times": {{name: "one", original: "&& "}},
		"mutant two overlaps":       {{name: "one", original: "a && b"}, {name: "two", original: "b {\n}\n\nif b"}},
	} {
		_, err := mutate(source, mutants)
		assert.ErrorContains(t, err, want)
	}
}

func TestMutate_TurnsEachMutantOnByItsName(t *testing.T) {
	t.Parallel()
	text, err := mutate([]byte("package x\n\nif a && b {\n}\n"), []mutant{
		{name: "two", original: "b {", text: "(b || mutated) {"},
		{name: "one", original: "a &&", text: "unless(mutated, a) &&"},
	})
	require.NoError(t, err)
	assert.Equal(t, "package x\n\nif unless(mutated(\"one\"), a) && (b || mutated(\"two\")) {\n}\n", string(text))
	assert.Contains(t, string(selector(text)), "package x\n")
}
