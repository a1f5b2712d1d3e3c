package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChoose_SelectsSuitesByPartsOfTheirNames(t *testing.T) {
	t.Parallel()
	names := func(words ...string) (names []string) {
		selected, err := choose(words)
		require.NoError(t, err)
		for _, s := range selected {
			names = append(names, s.String())
		}
		return names
	}
	require.Equal(t, []string{"ssa", "ssa/jsondiff"}, names("ssa"))
	require.Equal(t, []string{"controller-runtime/pkg/cache", "ssa/jsondiff"}, names("pkg/cache", "jsondiff"))
	require.NotContains(t, names(), "controller-runtime/pkg/cache", "it is slow")
	require.Subset(t, names("all"), append(names(), "controller-runtime/pkg/cache"))
	_, err := choose([]string{"ssa", "sas"})
	require.EqualError(t, err, `no suite has "sas" in its name`)
}

func TestReadEvents_CountsTestsAndNamesFailedSubtests(t *testing.T) {
	t.Parallel()
	r, err := readEvents(strings.NewReader(`
		{"Action":"start"}
		{"Action":"run","Test":"TestA"}
		{"Action":"output","Test":"TestA/b/c","Output":"want 1\n"}
		{"Action":"output","Test":"TestA/b/c","Output":"got 2\n"}
		{"Action":"fail","Test":"TestA/b/c"}
		{"Action":"pass","Test":"TestA/d"}
		{"Action":"fail","Test":"TestA"}
		{"Action":"pass","Test":"TestB"}
		{"Action":"skip","Test":"TestC"}
		{"Action":"fail"}`))
	require.NoError(t, err)
	require.Equal(t, results{run: 2, failed: 1, skipped: 1,
		failures: map[string]string{"TestA/b/c": "want 1\ngot 2\n"}}, r)
}

func TestReadEvents_ReportsFailureOfTestMain(t *testing.T) {
	t.Parallel()
	r, err := readEvents(strings.NewReader(`{"Action":"output","Output":"panic: no etcd\n"}{"Action":"fail"}`))
	require.NoError(t, err)
	require.Equal(t, map[string]string{wholePackage: "panic: no etcd\n"}, r.failures)
}

func TestAddSpecs_CountsSpecsInsteadOfTheirTest(t *testing.T) {
	t.Parallel()
	r, err := readEvents(strings.NewReader(`
		{"Action":"output","Test":"TestAPIs","Output":"Ran 2 of 3 Specs in 1.5 seconds\n"}
		{"Action":"fail","Test":"TestAPIs"}
		{"Action":"pass","Test":"TestBeside"}
		{"Action":"fail"}`))
	require.NoError(t, err)
	require.NoError(t, r.addSpecs([]byte(`[{"SpecReports": [
		{"LeafNodeType": "BeforeSuite", "State": "passed"},
		{"ContainerHierarchyTexts": ["a Job", "that ends"], "LeafNodeType": "It", "LeafNodeText": "is kept",
			"State": "failed", "Failure": {"Message": "timed out", "Location": {"FileName": "a.go", "LineNumber": 7}}},
		{"ContainerHierarchyTexts": ["a Job"], "LeafNodeType": "It", "LeafNodeText": "runs", "State": "passed"},
		{"LeafNodeType": "It", "LeafNodeText": "waits", "State": "pending"},
		{"LeafNodeType": "AfterSuite", "State": "panicked", "Failure": {"Message": "nil", "Location": {"FileName": "b.go"}}}
	]}]`)))
	require.Equal(t, results{run: 3, failed: 1, skipped: 1, failures: map[string]string{
		"a Job that ends is kept": "a.go:7: timed out\n", "AfterSuite": "b.go:0: nil\n"}}, r)
}

func TestFailing_ListMatchesFailures(t *testing.T) {
	t.Parallel()
	lists, err := parseFailing("# A comment.\nours | pkg/a | TestA/b | no CBOR\ntheirs | pkg/a | x y | needs Docker\n" +
		"skip | pkg/a | TestB | panics\n")
	require.NoError(t, err)
	require.Equal(t, map[string]known{"pkg/a": {[]string{"TestA/b", "x y"}, []string{"TestB"}}}, lists)
	r := results{failures: map[string]string{"TestA/b": "", "TestC": ""}}
	require.Equal(t, []string{"TestC"}, r.unknown(lists["pkg/a"].failing))
	require.Equal(t, []string{"x y"}, r.absent(lists["pkg/a"].failing))
}

func TestFailing_EachLineNeedsAReason(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"ours | a | b", "mine | a | b | c", "ours | a | b | ", "ours a b c"} {
		_, err := parseFailing(line)
		require.ErrorContains(t, err, "line 1", line)
	}
}

// Each project must have a release of its module, and its list must name existing suites. A run would notice this late.
func TestProjects_HaveModulesAndValidLists(t *testing.T) {
	t.Parallel()
	folders := map[string]bool{}
	for _, p := range projects {
		folders[p.name] = true
		module, err := os.ReadFile(filepath.Join(p.name, "go.mod"))
		require.NoError(t, err)
		require.Regexp(t, `(?m)^(?:require)?\s+`+regexp.QuoteMeta(p.module)+" v", string(module), p.name)
		list, err := os.ReadFile(filepath.Join(p.name, "failing.txt"))
		if err != nil {
			require.ErrorIs(t, err, os.ErrNotExist)
			continue
		}
		failing, err := parseFailing(string(list))
		require.NoError(t, err, p.name)
		require.Subset(t, slices.Concat(p.packages, p.slow), slices.Collect(maps.Keys(failing)), p.name)
	}
	files, err := filepath.Glob("*/go.mod")
	require.NoError(t, err)
	for _, file := range files {
		require.True(t, folders[filepath.Dir(file)], "%s belongs to no project", file)
	}
}

func TestKillAll_KillsRemainingProcessesOfSuite(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: only Linux shows the environments of processes")
	}
	start := func(entry string) *exec.Cmd {
		cmd := exec.Command("sleep", "600")
		cmd.Env = []string{"OTHER=1", entry}
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd
	}
	entry := "TMPDIR=" + t.TempDir()
	left, other := start(entry), start(entry+"/other")
	killAll(entry)
	require.ErrorContains(t, left.Wait(), "killed")
	require.NoError(t, other.Process.Signal(syscall.Signal(0)), "it still runs")
}
