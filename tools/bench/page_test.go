package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/tools/bench/load"
)

func TestReplaceTable_ChangesOnlyTheTextBetweenTheMarks(t *testing.T) {
	t.Parallel()
	text, err := replaceTable("# Title\n\n<!-- bench -->\nold\n<!-- /bench -->\n\nend\n", "new\n")
	require.NoError(t, err)
	require.Equal(t, "# Title\n\n<!-- bench -->\nnew\n<!-- /bench -->\n\nend\n", text)
	again, err := replaceTable(text, "new\n")
	require.NoError(t, err)
	require.Equal(t, text, again)
}

func TestReplaceTable_RequiresBothMarksOnceInOrder(t *testing.T) {
	t.Parallel()
	for name, document := range map[string]string{
		"none":      "# Title\n",
		"no begin":  "<!-- /bench -->\n",
		"no end":    "<!-- bench -->\nold\n",
		"reversed":  "<!-- /bench -->\n<!-- bench -->\n",
		"two pairs": strings.Repeat("<!-- bench -->\n<!-- /bench -->\n", 2),
	} {
		_, err := replaceTable(document, "new\n")
		require.ErrorContains(t, err, "needs one line <!-- bench -->", name)
	}
}

func TestPage_FailsBeforeTheMeasurementWithoutMarks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "page.md")
	_, err := parse([]string{"-page", path})
	require.ErrorContains(t, err, "no such file")
	require.NoError(t, os.WriteFile(path, []byte("# Title\n"), 0o600))
	_, err = parse([]string{"-page", path})
	require.ErrorContains(t, err, "needs one line")
	require.NoError(t, os.WriteFile(path, []byte("<!-- bench -->\n<!-- /bench -->\n"), 0o600))
	_, err = parse([]string{"-page", path, "get"})
	require.ErrorContains(t, err, "name none")
	plan, err := parse([]string{"-page", path, "-duration", "2s", "-binary", "x"})
	require.NoError(t, err)
	require.Equal(t, "go run ./tools/bench -duration 2s -page "+path, plan.page.command)
}

func TestPage_FormatsResults(t *testing.T) {
	t.Parallel()
	p := &page{command: "go run ./tools/bench -page docs/performance.md", options: load.DefaultOptions(), runs: 3,
		build: build{commit: "0123456789ab", goVersion: "go1.26.1"}, machine: "2 cores, 8 GiB, Linux 6.18.0"}
	p.results = []load.Result{ // the order of the rows is that of operations
		{Workload: "custom-get", Unit: "request", Operations: 1000, Elapsed: time.Second, P50: 40 * time.Microsecond,
			P99: 3 * time.Millisecond, CPU: 31 * time.Millisecond, Resident: 80 << 20, Ratio: 1.02},
		{Workload: "idle", Unit: "second", Operations: 20, Elapsed: 20 * time.Second, CPU: 300 * time.Millisecond,
			Resident: 61 << 20},
		{Workload: "create", Unit: "request", Operations: 4000, Elapsed: time.Second, P50: 4 * time.Millisecond,
			P99: 12 * time.Millisecond, CPU: 1600 * time.Millisecond, Resident: 150 << 20},
		{Workload: "get", Unit: "request", Operations: 18000, Elapsed: time.Second, P50: 800 * time.Microsecond,
			P99: 2 * time.Millisecond, CPU: 1080 * time.Millisecond, Resident: 200 << 20},
	}
	now := time.Date(2026, 11, 29, 23, 30, 0, 0, time.UTC)
	text := p.table(now)
	require.Equal(t, text, p.table(now))
	require.Equal(t, `
    go run ./tools/bench -page docs/performance.md

| measured | |
|---|---|
| on | 29 November 2026 |
| of | commit 0123456789ab, go1.26.1 |
| at | 2 cores, 8 GiB, Linux 6.18.0 |
| as | the median of 3 runs of 5s each; 10000 pods of 2 kB, 16 clients unless said otherwise, 200 watchers with 100 changes a second, Deployments of 1000 replicas |

| operation | p50 | p99 | throughput | CPU per operation | memory | goal |
|---|---|---|---|---|---|---|
| a second without requests, no objects | - | - | - | 15 ms | 61 MiB | ≤ 60 MiB (not met) |
| create a pod | 4 ms | 12 ms | 4000/s | 400 µs | 150 MiB | ≥ 4400/s (not met), CPU ≤ 400 µs |
| GET a pod, consistently | 800 µs | 2 ms | 18000/s | 60 µs | 200 MiB | ≥ 17360/s, CPU ≤ 80 µs |
| GET a custom resource; a ConfigMap | 40 µs | 3 ms | 1000/s | 31 µs; 1.02 × | 80 MiB | ≤ 1.1 × |

`, text)
}

// A workload that runs by default has a row, and a row has a workload.
func TestOperations_AreTheWorkloads(t *testing.T) {
	t.Parallel()
	rows := map[string]bool{}
	for _, o := range operations {
		require.False(t, rows[o.workload], o.workload)
		rows[o.workload] = true
		require.True(t, o.workload == "start" || load.Named(o.workload) != nil, o.workload)
	}
	for _, w := range load.Workloads {
		require.True(t, w.Long || rows[w.Name], w.Name)
	}
}

// The document that make bench updates has the marks.
func TestPage_OfTheDocumentsCanBeWritten(t *testing.T) {
	t.Parallel()
	_, err := newPage("../../docs/performance.md")
	require.NoError(t, err)
}

func TestParseVersion_NeedsACommit(t *testing.T) {
	t.Parallel()
	b, err := parseVersion("coxswain v1.2.3+coxswain.0123456-dirty (go1.26.1 linux/amd64)\n")
	require.NoError(t, err)
	require.Equal(t, build{commit: "0123456-dirty", goVersion: "go1.26.1"}, b)
	for _, output := range []string{"", "coxswain v1.2.3+coxswain (go1.26.1 linux/amd64)\n",
		"coxswain v1.2.3+coxswain.unknown (go1.26.1 linux/amd64)\n"} {
		_, err := parseVersion(output)
		require.ErrorContains(t, err, "make build", output)
	}
}

func TestCommandLine_HasTheFlagsThatWereGiven(t *testing.T) {
	t.Parallel()
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.String("binary", "", "")
	fs.Int("runs", 3, "")
	fs.Int("rate", 100, "")
	require.NoError(t, fs.Parse([]string{"-runs", "1", "-binary", "b", "get"}))
	require.Equal(t, "go run ./tools/bench -runs 1 get", commandLine(fs))
}
