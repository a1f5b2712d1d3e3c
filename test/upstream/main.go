// Command upstream runs the test suites of other projects, unmodified, on the programs of `coxswain assets`.
//
//	go run ./test/upstream [WORD…]
//
// With words it runs the suites with one of the words in their names; the word "all" selects every suite. Without words
// it runs all except slow suites. A project is a module in a folder of this package. Its go.mod has the release, and
// its failing.txt lists the tests that are known to fail, with reasons. The run fails if an unlisted test fails, and if
// a listed test does not fail.
//
// A suite is compiled in a workspace with this repository's module, with this repository's versions of common modules,
// so that these are compiled only once.
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

// A project is a module with test suites.
type project struct {
	name     string   // folder with a go.mod that pins the release
	module   string   // path of the module
	packages []string // paths of its suites below the module
	slow     []string // paths of suites that run only if the command line names them

	// replaced maps files of the module to files of the folder that replace them. The suites then run in a copy of the
	// module, because the go command cannot replace single files of the module cache.
	replaced map[string]string
	// atRoot is set for suites that find their files by the file names that the compiler recorded. With -trimpath these
	// are relative to the module cache.
	atRoot bool
}

var projects = []project{
	{
		name: "controller-runtime", module: "sigs.k8s.io/controller-runtime",
		packages: []string{"pkg/envtest", "pkg/client", "pkg/builder", "pkg/webhook", "pkg/cluster", "pkg/source",
			"pkg/controller/controllerutil"},
		slow: []string{"pkg/manager", "pkg/cache"}, // they wait for timeouts
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

// choose returns the suites with one of the words in their names. Each word must match a suite.
func choose(words []string) (selected []suite, err error) {
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
				selected = append(selected, s)
			}
		}
	}
	for _, word := range words {
		if !used[word] {
			return nil, fmt.Errorf("no suite has %q in its name", word)
		}
	}
	return selected, nil
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

// root is the folder of the projects in the repository.
const root = "test/upstream"

func run(ctx context.Context, out io.Writer, words []string) error {
	selected, err := choose(words)
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
	for _, s := range selected {
		start := time.Now()
		r, err := s.check(ctx, out, assets)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s, err))
		}
		fmt.Fprintf(out, "%s: %s in %.0f s\n", s, r, time.Since(start).Seconds())
		fmt.Fprintf(table, "| %s %s\t| %s\t| %d\t| %d\t| %d\t| %d\t|\n",
			s.name, r.version, s.dir, r.run, r.run-r.failed, r.failed, r.skipped)
	}
	return errors.Join(append(errs, table.Flush())...)
}

// check runs a suite and compares the failed tests with the project's list. If an unlisted test fails, the suite runs
// again, and only tests that fail twice count as failures.
func (s suite) check(ctx context.Context, out io.Writer, assets string) (results, error) {
	text, err := os.ReadFile(filepath.Join(root, s.name, "failing.txt"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return results{}, err
	}
	lists, err := parseFailing(string(text))
	if err != nil {
		return results{}, err
	}
	list := lists[s.dir]
	dir, err := os.MkdirTemp("", "upstream")
	if err != nil {
		return results{}, err
	}
	defer os.RemoveAll(dir)
	binary, err := s.build(ctx, dir)
	if err != nil {
		return results{}, err
	}
	first, err := binary.run(ctx, assets, list.skipped)
	if err != nil {
		return results{}, err
	}
	unknown := first.unknown(list.failing)
	if len(unknown) > 0 {
		second, err := binary.run(ctx, assets, list.skipped)
		if err != nil {
			return first, err
		}
		for _, name := range unknown {
			if _, again := second.failures[name]; !again {
				fmt.Fprintf(out, "FLAKY: %s: %s\n%s\n", s, name, first.failures[name])
				delete(first.failures, name)
			}
		}
		if unknown = first.unknown(list.failing); len(unknown) == 0 {
			first.run, first.failed, first.skipped = second.run, second.failed, second.skipped
		}
	}
	for _, name := range unknown {
		fmt.Fprintf(out, "FAILED: %s: %s\n%s\n", s, name, first.failures[name])
		err = errors.Join(err, fmt.Errorf("failed: %s", name))
	}
	for _, name := range first.absent(list.failing) {
		err = errors.Join(err, fmt.Errorf("listed in failing.txt but did not fail: %s", name))
	}
	return first, err
}
