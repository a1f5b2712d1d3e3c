package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMessage_SubjectNamesTheAreaAndIsImperative(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]string{
		"api: count CEL expressions before compiling one":       "",
		"storage, controllers: change nothing of the process":   "",
		"node/sandbox: confine containers as other runtimes do": "",
		".ci: pass where no test had to run a second time":      "",
		"docs: say what is measured":                            "",
		"watch: ring the alarms of a namespace":                 "",
		"proxy: embed the ruleset, need no file":                "",
		"conn: address clients by their network":                "",
		"cni: be the plugin loopback, too":                      "",
		"authz: bound webhooks by their own time limit":         "",
		"apiserver: never lead to the server itself":            "",
		"dns: process answers in order":                         "",
		"x: " + strings.Repeat("a", 69):                         "",
		"x: " + strings.Repeat("ä", 69):                         "",
		"x: " + strings.Repeat("a", 70):                         "the subject has 73 columns, and may have 72",
		"What attacks come to, anew":                            `the form "area: what it does"`,
		"count CEL expressions":                                 `the form "area: what it does"`,
		"api:count expressions":                                 `the form "area: what it does"`,
		"api: ":                                                 `the form "area: what it does"`,
		"big changes: count expressions":                        `the form "area: what it does"`,
		`Revert "api: count expressions"`:                       `the form "area: what it does"`,
		"dns: the server ends on time":                          `"the" is not`,
		"docs: a table of attacks":                              `"a" is not`,
		"docs: tables of attacks":                               `"tables" is not`,
		"api: counts CEL expressions":                           `"counts" is not`,
		"api: counted CEL expressions":                          `"counted" is not`,
		"api: counting CEL expressions":                         `"counting" is not`,
		"api: Counted CEL expressions":                          `"counted" is not`,
		"api: sent less":                                        `"sent" is not`,
		"api: no more copies":                                   `"no" is not`,
		"router: pod is connected once its cable sends":         `"pod is" is not`,
		"api: sheep may safely graze":                           `"sheep may" is not`,
		"api: `counted` expressions":                            `"counted" is not`,
	} {
		found, err := problems(subject, nothing)
		require.NoError(t, err)
		if want == "" {
			require.Empty(t, found, subject)
		} else {
			require.Contains(t, strings.Join(found, "\n"), want, subject)
		}
	}
}

func nothing() (int, error) { return 0, nil }

func TestMessage_BodySaysWhyFromElevenLinesOn(t *testing.T) {
	t.Parallel()
	for body, silent := range map[string]bool{
		"":                                    true,
		"\n\n":                                true,
		"\n\nSigned-off-by: A <a@b.example>":  true,
		"\n\nOne of them takes a second.":     false,
		"\n\nBecause.\n\nCo-authored-by: A B": false,
	} {
		for _, lines := range []int{0, 10, 11} {
			found, err := problems("api: count"+body, func() (int, error) { return lines, nil })
			require.NoError(t, err)
			if silent && lines == 11 {
				require.Equal(t, []string{"11 lines of code change: a body must say why"}, found, body)
			} else {
				require.Empty(t, found, "%q %d", body, lines)
			}
		}
	}
	_, err := problems("api: count", func() (int, error) { return 0, errors.New("no git") })
	require.EqualError(t, err, "no git")
	found, err := problems("api: count\nBecause.", nothing)
	require.NoError(t, err)
	require.Equal(t, []string{"the second line must be empty"}, found)
}

func TestChanges_AreLinesOfCodeThatAreNewOrGone(t *testing.T) {
	t.Parallel()
	file := func(name string, lines ...string) string {
		return fmt.Sprintf("diff --git a/%s b/%s\n--- a/%s\n+++ b/%s\n@@ -1 +1 @@\n%s\n", name, name, name, name,
			strings.Join(lines, "\n"))
	}
	for _, c := range []struct {
		name, patch string
		want        int
	}{
		{"nothing", "", 0},
		{"a line that changes", file("a.go", "-x := 1", "+x := 2"), 1},
		{"two that are new", file("a.go", "+x := 1", "+y := 2"), 2},
		{"two that are gone", file("a.go", "-x := 1", "-y := 2"), 2},
		{"the same line, twice", file("a.go", "+x()", "+x()"), 2},
		{"a comment and an empty line", file("a.go", "+// x", "+", "-\t// y"), 0},
		{"a comment of a script", file("a.sh", "+# x", "+#!/bin/sh"), 1},
		{"code moved to another file and depth", file("a.go", "-x := 1", "-y()") + file("b.go", "+\tx := 1", "+\ty()"), 0},
		{"code moved and changed", file("a.go", "-x := 1", "-y()") + file("b.go", "+x := 2", "+y()"), 1},
		{"a renamed file", "diff --git a/a.go b/b.go\nsimilarity index 100%\nrename from a.go\nrename to b.go\n", 0},
		{"imports and package clauses", file("a.go", "-package a", "+package b", `-	"x/a"`, `+	b "x/b"`, `+import "c"`), 0},
		{"a string in a script", file("a.sh", `+"x/a"`), 1},
		{"documents", file("README.md", "+x") + file("docs/a.txt", "+x") + file("api/testdata/a.go", "+x") +
			file("go.sum", "+x"), 0},
		{"a folder with a similar name", file("mydocs/a.go", "+x()"), 1},
	} {
		require.Equal(t, c.want, changedLines(c.patch), c.name)
	}
}
