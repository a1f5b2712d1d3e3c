package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
)

// upgradePage is docs/upgrade.md: the files that name the version of Kubernetes, the files that depend on it without
// naming it, and the commands for both.
type upgradePage struct {
	versioned, sources []string
	commands           []string
}

func readUpgradePage(t *testing.T) *upgradePage {
	text, err := os.ReadFile("../docs/upgrade.md")
	require.NoError(t, err)
	first, second, two := strings.Cut(string(text), "\n## Sources without the version\n")
	require.True(t, two)
	p := &upgradePage{}
	p.versioned, p.sources = p.files(first), p.files(second)
	return p
}

// files returns the files in the first column of a table, and records the commands in its last.
func (p *upgradePage) files(section string) (found []string) {
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			found = append(found, m[1])
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[len(cells)-2], -1) {
			p.commands = append(p.commands, m[1])
		}
	}
	return found
}

// TestUpgrade_PageListsTheFilesThatNameTheVersion compares the first table of docs/upgrade.md with the repository in
// both directions: it lists exactly the files that name the version of Kubernetes.
func TestUpgrade_PageListsTheFilesThatNameTheVersion(t *testing.T) {
	t.Parallel()
	page := readUpgradePage(t)
	names := map[string]bool{}
	for _, name := range page.versioned {
		require.False(t, names[name], "%s is listed twice", name)
		names[name] = true
	}
	require.Greater(t, len(names), 20)
	seen := map[string]bool{}
	find := newVersionFinder(kubeversion.Major, kubeversion.Minor)
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(filepath.ToSlash(path), "../")
		switch {
		case d.IsDir() && (name == "bin" || name == "dist" ||
			strings.HasPrefix(d.Name(), ".") && name != ".." && name != ".ci" && name != ".githooks"):
			return fs.SkipDir
		case !d.Type().IsRegular() || d.Name() == "go.sum" || name == "docs/upgrade.md" || name == ".git":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found := find.in(string(text))
		if len(found) > 0 && !names[name] {
			t.Errorf("%s names the version of Kubernetes (%q): take it from internal/kubeversion, or list the file in "+
				"docs/upgrade.md", name, found)
		}
		seen[name] = len(found) > 0
		return nil
	}))
	seen["internal/kubeversion/kubeversion.go"] = true // it names the parts
	for name := range names {
		named, exists := seen[name]
		require.True(t, exists, "docs/upgrade.md lists %s, which does not exist", name)
		require.True(t, named, "docs/upgrade.md lists %s, which does not name version %s.%s", name, kubeversion.Major,
			kubeversion.Minor)
	}
}

// versionFinder finds the version of Kubernetes and of its modules.
type versionFinder struct{ version, minor *regexp.Regexp }

// unit follows a measurement.
var unit = regexp.MustCompile(`^ ?(?:[nµum]?s|min|h|%|[KMG]i?B|×)(?:[^\w]|$)`)

func newVersionFinder(major, minor string) *versionFinder {
	return &versionFinder{
		// 1.42, v1.42.2, v0.42.2 and, in regular expressions, v1\.42
		version: regexp.MustCompile(`\bv?(?:` + major + `\\?\.` + minor + `(?:\\?\.\d+)?|0\.` + minor + `\.\d+)\b`),
		// Minor: "42", "minor":"42"
		minor: regexp.MustCompile(`(?i)\bminor\W{1,5}` + minor + `\b`),
	}
}

func (f *versionFinder) in(text string) (found []string) {
	for _, span := range f.version.FindAllStringIndex(text, -1) {
		inNumber := span[0] > 1 && text[span[0]-1] == '.' && '0' <= text[span[0]-2] && text[span[0]-2] <= '9'
		if !inNumber && !unit.MatchString(text[span[1]:]) {
			found = append(found, text[span[0]:span[1]])
		}
	}
	return append(found, f.minor.FindAllString(text, -1)...)
}

func TestUpgrade_FindsOnlyVersions(t *testing.T) {
	t.Parallel()
	find := newVersionFinder("1", "42")
	for text, want := range map[string][]string{
		`Kubernetes v1.42, or 1.42.2.`:           {"v1.42", "1.42.2"},
		"k8s.io/api v0.42.2":                     {"v0.42.2"},
		"v1.42.2+coxswain":                       {"v1.42.2"},
		"kube-probe/1.42":                        {"1.42"},
		`^Coxswain v1\.42\S*`:                    {`v1\.42`},
		`Minor: "42", and "minor":"42"`:          {`Minor: "42`, `minor":"42`},
		"1.36, 1.420, 11.42, v1.142, 2.1.42":     nil,
		"0.42 ms, 1.42 s, 1.42ms, 1.42 %":        nil,
		"1.42 MiB of memory, 1.42 GB, and 0.42×": nil,
		"1.42 servers":                           {"1.42"},
		"a minor 420":                            nil,
	} {
		require.Equal(t, want, find.in(text), text)
	}
}

// TestUpgrade_ModulesMatchTheVersion compares the constants with go.mod.
func TestUpgrade_ModulesMatchTheVersion(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	require.Contains(t, string(text), "\n\tk8s.io/api v0."+kubeversion.Minor+"."+kubeversion.Patch+"\n")
}

var (
	runTests   = regexp.MustCompile(`\bgo test (\S+) -run (\w+)`)
	makeTarget = regexp.MustCompile(`\bmake ([a-z0-9]+)`)
	aTarget    = regexp.MustCompile(`(?m)^([a-z0-9]+):`)
)

// TestUpgrade_CommandsExist checks the sources and the commands of docs/upgrade.md: files, tests and targets of make.
func TestUpgrade_CommandsExist(t *testing.T) {
	t.Parallel()
	page := readUpgradePage(t)
	require.Greater(t, len(page.sources), 20)
	for _, name := range page.sources {
		require.FileExists(t, filepath.Join("..", name))
	}
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	targets := map[string]bool{}
	for _, m := range aTarget.FindAllStringSubmatch(string(makefile), -1) {
		targets[m[1]] = true
	}
	checked := 0
	for _, command := range page.commands {
		for _, m := range runTests.FindAllStringSubmatch(command, -1) {
			checked++
			require.True(t, declaresTest(t, filepath.Join("..", m[1]), m[2]), "%s has no test %s", m[1], m[2])
		}
		for _, m := range makeTarget.FindAllStringSubmatch(command, -1) {
			checked++
			require.True(t, targets[m[1]], "make %s", m[1])
		}
	}
	require.Greater(t, checked, 15)
	require.False(t, declaresTest(t, "../api/builtin", "TestNothing"))
}

// declaresTest reports whether a package has a test with this prefix.
func declaresTest(t *testing.T, folder, name string) bool {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if strings.Contains(string(text), "\nfunc "+name) {
			return true
		}
	}
	return false
}
