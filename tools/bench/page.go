package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/coxswain-dev/coxswain/tools/bench/load"
)

// The results stand between these lines of a document.
const (
	pageBegin = "<!-- bench -->"
	pageEnd   = "<!-- /bench -->"
)

// operation is a row of the page.
type operation struct {
	workload string
	about    string
	goal     goal
}

// goal has a limit for some figures of a workload. A field is 0 if there is none.
type goal struct {
	rate   float64 // per second, at least
	p50    time.Duration
	p99    time.Duration
	cpu    time.Duration // for each operation
	memory int64         // bytes
	ratio  float64       // CPU as a multiple of the reference's, such as that of a ConfigMap
}

// operations lists the workloads that the page has, in the order of its rows. The goals are for the default options on
// two cores.
var operations = []operation{
	{"start", "cold start of `coxswain apiserver`, until `/readyz` succeeds", goal{p50: 250 * time.Millisecond}},
	{"idle", "a second without requests, no objects", goal{memory: 60 << 20}},
	{"rest", "a second without requests, all pods", goal{memory: 160 << 20}},
	{"fill", "create all pods", goal{}},
	{"create", "create a pod", goal{rate: 4400, cpu: 400 * time.Microsecond}},
	{"get", "GET a pod, consistently", goal{rate: 17360, cpu: 80 * time.Microsecond}},
	{"list", "LIST all pods, one client", goal{p50: 29 * time.Millisecond, cpu: 30 * time.Millisecond}},
	{"pages", "the same in pages of 500", goal{}},
	{"select", "LIST the 1 % of them that a label selects, one client", goal{}},
	{"patch", "merge patch of a label", goal{rate: 4080, cpu: 450 * time.Microsecond}},
	{"strategic", "strategic merge patch of a label", goal{}},
	{"update", "update of a label", goal{}},
	{"watch", "deliver an event to a watcher; the CPU includes the changes",
		goal{p99: 3 * time.Millisecond, cpu: 6 * time.Microsecond}},
	{"informer", "start an informer of client-go and fill its cache with all pods", goal{}},
	{"mixed", "70 % GET, 10 % LIST of 100, 10 % patch, 5 % create, 5 % delete", goal{}},
	{"deployment", "a Deployment, until all replicas are Ready; 10 Nodes",
		goal{p50: 2 * time.Second, cpu: 5 * time.Second, memory: 250 << 20}},
	{"rollout", "its rolling update", goal{}},
	{"deployments", "100 Deployments of 20, until all are Ready", goal{}},
	{"custom-get", "GET a custom resource; a ConfigMap", goal{ratio: 1.1}},
	{"custom-list", "LIST all custom resources, one client; ConfigMaps", goal{ratio: 1.1}},
	{"custom-watch", "deliver an event of custom resources; of ConfigMaps", goal{ratio: 1.1}},
	{"custom-create", "create a custom resource whose definition has ten rules; a pod", goal{ratio: 1.5}},
	{"custom-patch", "merge patch of a custom resource's label; of a ConfigMap's", goal{}},
}

// page collects results, and writes them into a document.
type page struct {
	path    string
	command string // repeats the measurement
	options load.Options
	runs    int
	build   build // of the measured binary
	machine string
	results []load.Result
}

// newPage checks that the document can be written, since the measurement takes minutes.
func newPage(path string) (*page, error) {
	document, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("-page: %w", err)
	}
	if _, err := replaceTable(string(document), ""); err != nil {
		return nil, fmt.Errorf("-page %s: %w", path, err)
	}
	return &page{path: path, machine: machine()}, nil
}

// write replaces the document's table.
func (p *page) write(now time.Time) error {
	document, err := os.ReadFile(p.path)
	if err != nil {
		return err
	}
	text, err := replaceTable(string(document), p.table(now))
	if err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	return os.WriteFile(p.path, []byte(text), 0o644)
}

// replaceTable returns the document with another text between the two marks, which must occur once each.
func replaceTable(document, text string) (string, error) {
	before, rest, begun := strings.Cut(document, pageBegin+"\n")
	_, after, ended := strings.Cut(rest, pageEnd+"\n")
	if !begun || !ended || strings.Contains(after, pageBegin) || strings.Contains(after, pageEnd) {
		return "", fmt.Errorf("needs one line %s and, after it, one line %s", pageBegin, pageEnd)
	}
	return before + pageBegin + "\n" + text + pageEnd + "\n" + after, nil
}

// table returns the Markdown of the results: the circumstances of the measurement, and a row for each operation.
func (p *page) table(now time.Time) string {
	var s strings.Builder
	o := p.options
	fmt.Fprintf(&s, "\n    %s\n\n", p.command)
	fmt.Fprintf(&s, "| measured | |\n|---|---|\n| on | %s |\n| of | commit %s, %s |\n| at | %s |\n",
		now.UTC().Format("2 January 2006"), p.build.commit, p.build.goVersion, p.machine)
	fmt.Fprintf(&s, "| as | the median of %d runs of %v each; %d pods of 2 kB, %d clients unless said otherwise, "+
		"%d watchers with %d changes a second, Deployments of %d replicas |\n\n", p.runs, o.Duration, o.Objects,
		o.Clients, o.Watchers, o.Rate, o.Replicas)
	s.WriteString("| operation | p50 | p99 | throughput | CPU per operation | memory | goal |\n" +
		"|---|---|---|---|---|---|---|\n")
	for _, row := range operations {
		for _, r := range p.results {
			if r.Workload == row.workload {
				s.WriteString(row.markdown(r))
			}
		}
	}
	s.WriteString("\n")
	return s.String()
}

// markdown returns the row of a result.
func (o operation) markdown(r load.Result) string {
	throughput := "-"
	if r.Unit != "second" {
		throughput = rate(r.Rate()) + "/s"
	}
	cpu := short(r.CPUPerOperation())
	if r.Ratio > 0 {
		cpu += fmt.Sprintf("; %.2f ×", r.Ratio)
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", o.about, short(r.P50), short(r.P99), throughput, cpu,
		mebibytes(r.Resident), o.goal.compare(r))
}

// compare returns the goal as text, with a mark at each figure that misses its limit.
func (g goal) compare(r load.Result) string {
	var parts []string
	add := func(set, met bool, text string) {
		if set && !met {
			text += " (not met)"
		}
		if set {
			parts = append(parts, text)
		}
	}
	add(g.p50 > 0, r.P50 <= g.p50, "p50 ≤ "+short(g.p50))
	add(g.p99 > 0, r.P99 <= g.p99, "p99 ≤ "+short(g.p99))
	add(g.rate > 0, r.Rate() >= g.rate, "≥ "+rate(g.rate)+"/s")
	add(g.cpu > 0, r.CPUPerOperation() <= g.cpu, "CPU ≤ "+short(g.cpu))
	add(g.memory > 0, r.Resident <= g.memory, "≤ "+mebibytes(g.memory))
	add(g.ratio > 0, r.Ratio <= g.ratio, fmt.Sprintf("≤ %.1f ×", g.ratio))
	return strings.Join(parts, ", ")
}

// build identifies a binary.
type build struct{ commit, goVersion string }

// versionLine is the output of "coxswain version" of a binary that make has built: the last part of its version is the
// commit, as git describes it.
var versionLine = regexp.MustCompile(`^coxswain \S+\+coxswain\.(\S+) \((go\S+) `)

// readBuild asks a coxswain for its commit.
func readBuild(ctx context.Context, binary string) (build, error) {
	output, err := exec.CommandContext(ctx, binary, "version").Output()
	if err != nil {
		return build{}, fmt.Errorf("%s version: %w", binary, err)
	}
	return parseVersion(string(output))
}

func parseVersion(output string) (build, error) {
	found := versionLine.FindStringSubmatch(output)
	if found == nil || found[1] == "unknown" {
		return build{}, fmt.Errorf("%q names no commit: build the binary with make build", output)
	}
	return build{commit: found[1], goVersion: found[2]}, nil
}

// machine describes the computer in a line, with the work that it has before the measurement.
func machine() string {
	parts := []string{fmt.Sprintf("%d cores", runtime.NumCPU())}
	if name := procValue("/proc/cpuinfo", "model name"); name != "" {
		parts[0] += " of " + name
	}
	if kib, err := strconv.Atoi(strings.TrimSuffix(procValue("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		parts = append(parts, fmt.Sprintf("%d GiB", (kib+1<<19)>>20))
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		version, _, _ := strings.Cut(strings.TrimSpace(string(release)), "-")
		parts = append(parts, "Linux "+version)
	} else {
		parts = append(parts, runtime.GOOS+"/"+runtime.GOARCH)
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		average, _, _ := strings.Cut(string(load), " ")
		parts = append(parts, "load average before the runs "+average)
	}
	return strings.Join(parts, ", ")
}

// procValue returns the first value of a key in a file of lines "key: value", or "" if there is none.
func procValue(path, key string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(content)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// commandLine returns the command that a set of flags was parsed from. It leaves out the binary, whose commit the page
// names.
func commandLine(fs *flag.FlagSet) string {
	words := []string{"go run ./tools/bench"}
	fs.Visit(func(f *flag.Flag) {
		if f.Name != "binary" {
			words = append(words, "-"+f.Name, f.Value.String())
		}
	})
	return strings.Join(append(words, fs.Args()...), " ")
}
