// Command upstream runs the test suites of other projects, unmodified, on the programs of `coxswain assets`.
//
//	go run ./test/upstream [WORD…]
//
// With words it runs the suites that have one of them in their name; the word "all" is every suite. Without, it runs
// all but those that take long. A project is a module in a folder here, whose go.mod has its release, and whose
// failing.txt lists the tests that are known to fail and why. The run fails when a test fails that is not listed, and
// when one that is listed does not fail.
//
// A suite is compiled in a workspace with this repository's module, and what both need is of this repository's version.
// So it is compiled once for all.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// A project is a module whose suites run.
type project struct {
	name     string   // folder here: its go.mod pins the release
	module   string   // path of the module
	packages []string // paths of its suites below the module
	slow     []string // more of them, which run only when they are named

	// replaced are files of the module that give way to files of the folder. The suites then run in a copy of the
	// module, because the go command compiles nothing else in place of the module cache's files.
	replaced map[string]string
	// atRoot is true for suites that find their files by the names that the compiler recorded. With -trimpath these
	// are relative to the module cache.
	atRoot bool
}

var projects = []project{
	{
		name: "controller-runtime", module: "sigs.k8s.io/controller-runtime",
		packages: []string{"pkg/envtest", "pkg/client", "pkg/builder", "pkg/webhook", "pkg/cluster", "pkg/source",
			"pkg/controller/controllerutil"},
		slow: []string{"pkg/manager", "pkg/cache"}, // they wait for time-outs of their own
	},
	{
		name: "apiextensions", module: "k8s.io/apiextensions-apiserver",
		packages: []string{"test/integration", "test/integration/conversion"},
		replaced: map[string]string{"test/integration/fixtures/server.go": "fixtures/server.go"},
	},
	{name: "ssa", module: "github.com/fluxcd/pkg/ssa", packages: []string{".", "jsondiff"}},
	{
		name: "jobset", module: "sigs.k8s.io/jobset",
		packages: []string{"test/integration/controller", "test/integration/webhook"},
	},
	{
		name: "lws", module: "sigs.k8s.io/lws",
		packages: []string{"test/integration/controllers", "test/integration/webhooks"},
	},
	{
		name: "cluster-api", module: "sigs.k8s.io/cluster-api", atRoot: true,
		slow: []string{"controllers/clustercache", "core/reconcilers/cluster", "core/reconcilers/machine",
			"core/reconcilers/machineset"},
	},
}

// A suite is a package of tests.
type suite struct {
	project
	dir string // path below the module
}

func (s suite) String() string { return path.Join(s.name, s.dir) }

// choose returns the suites whose names have one of the words. Each word must match one.
func choose(words []string) (chosen []suite, err error) {
	used := map[string]bool{"all": true}
	for _, p := range projects {
		for _, dir := range slices.Concat(p.packages, p.slow) {
			s := suite{p, dir}
			take := len(words) == 0 && !slices.Contains(p.slow, dir)
			for _, word := range words {
				if strings.Contains(s.String(), word) {
					used[word], take = true, true
				}
				take = take || word == "all"
			}
			if take {
				chosen = append(chosen, s)
			}
		}
	}
	for _, word := range words {
		if !used[word] {
			return nil, fmt.Errorf("no suite has %q in its name", word)
		}
	}
	return chosen, nil
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "upstream:", err)
		os.Exit(1)
	}
}

// root is the folder of the projects, from that of the repository.
const root = "test/upstream"

func run(ctx context.Context, out io.Writer, words []string) error {
	chosen, err := choose(words)
	if err != nil {
		return err
	}
	assets, err := filepath.Abs("bin/assets")
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(assets, "kube-apiserver")); err != nil {
		return fmt.Errorf("run make assets first: %w", err)
	}
	table := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintln(table, "| project\t| suite\t| run\t| passed\t| failed\t| skipped\t|")
	var errs []error
	for _, s := range chosen {
		begin := time.Now()
		r, err := s.check(ctx, out, assets)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s, err))
		}
		fmt.Fprintf(out, "%s: %s in %.0f s\n", s, r, time.Since(begin).Seconds())
		fmt.Fprintf(table, "| %s %s\t| %s\t| %d\t| %d\t| %d\t| %d\t|\n",
			s.name, r.version, s.dir, r.run, r.run-r.failed, r.failed, r.skipped)
	}
	return errors.Join(append(errs, table.Flush())...)
}

// check runs a suite and compares what failed with the project's list. When a test fails that is not on it, the suite
// runs once more, and only those that fail twice count.
func (s suite) check(ctx context.Context, out io.Writer, assets string) (results, error) {
	list, err := os.ReadFile(filepath.Join(root, s.name, "failing.txt"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return results{}, err
	}
	lists, err := parseFailing(string(list))
	if err != nil {
		return results{}, err
	}
	known := lists[s.dir]
	dir, err := os.MkdirTemp("", "upstream")
	if err != nil {
		return results{}, err
	}
	defer os.RemoveAll(dir)
	binary, err := s.build(ctx, dir)
	if err != nil {
		return results{}, err
	}
	first, err := binary.run(ctx, assets, known.skipped)
	if err != nil {
		return results{}, err
	}
	unknown := first.unknown(known.failing)
	if len(unknown) > 0 {
		second, err := binary.run(ctx, assets, known.skipped)
		if err != nil {
			return first, err
		}
		for _, name := range unknown {
			if _, again := second.failures[name]; !again {
				fmt.Fprintf(out, "FLAKY: %s: %s\n%s\n", s, name, first.failures[name])
				delete(first.failures, name)
			}
		}
		if unknown = first.unknown(known.failing); len(unknown) == 0 {
			first.run, first.failed, first.skipped = second.run, second.failed, second.skipped
		}
	}
	for _, name := range unknown {
		fmt.Fprintf(out, "FAILED: %s: %s\n%s\n", s, name, first.failures[name])
		err = errors.Join(err, fmt.Errorf("failed: %s", name))
	}
	for _, name := range first.absent(known.failing) {
		err = errors.Join(err, fmt.Errorf("listed in failing.txt but did not fail: %s", name))
	}
	return first, err
}
