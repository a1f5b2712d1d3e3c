package kubectllite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/util/i18n"
)

// Name is what the binary is called; usage texts and completion scripts speak of it.
const Name = "kubectl-lite"

// group is one heading of the help page and the verbs below it.
type group struct {
	title string
	verbs []verb
}

// verb is a command and its name, by which a line is seen to speak of it before it is built.
type verb struct {
	name  string
	build func(*session) *cobra.Command
}

// groups are all verbs, in the order of the help page. To add a verb, write its file and name it here.
func groups() []group {
	return []group{
		{"Read", []verb{{"get", newGet}, {"describe", newDescribe}, {"tree", newTree}, {"why", newWhy}, {"timeline", newTimeline},
			{"events", newEvents}, {"explain", newExplain}, {"diff", newDiff}, {"wait", newWait}}},
		{"Change", []verb{{"apply", newApply}, {"create", newCreate}, {"replace", newReplace}, {"edit", newEdit}, {"patch", newPatch}, {"set", newSet},
			{"label", newLabel}, {"annotate", newAnnotate}, {"expose", newExpose}, {"ttl", newTTL}, {"delete", newDelete}}},
		{"Run", []verb{{"run", newRun}, {"scale", newScale}, {"autoscale", newAutoscale}, {"rollout", newRollout}, {"logs", newLogs},
			{"exec", newExec}, {"attach", newAttach}, {"port-forward", newPortForward}, {"cp", newCopy}}},
		{"Nodes", []verb{{"cordon", newCordon}, {"uncordon", newUncordon}, {"drain", newDrain}, {"taint", newTaint}}},
		{"The cluster", []verb{{"cluster-info", newClusterInfo}, {"top", newTop}, {"api-resources", newAPIResources}, {"api-versions", newAPIVersions},
			{"auth", newAuth}, {"certificate", newCertificate}, {"proxy", newProxy}}},
		{"This tool", []verb{{"config", newConfig}, {"kustomize", newKustomize}, {"options", newOptions}, {"plugin", newPlugin}, {"completion", newCompletion}, {"version", newVersion}}},
	}
}

// spokenOf are the verbs whose names stand in the arguments, or nil where these begin with something else than a verb or a flag:
// then it takes all of them to answer. Building a verb costs a tenth of a millisecond, and there are fifty.
func spokenOf(args []string) map[string]bool {
	known := map[string]bool{}
	for _, g := range groups() {
		for _, v := range g.verbs {
			known[v.name] = true
		}
	}
	if len(args) == 0 || !known[args[0]] && !strings.HasPrefix(args[0], "-") {
		return nil
	}
	var spoken map[string]bool
	for _, arg := range args {
		if !known[arg] {
			continue
		}
		if spoken == nil {
			spoken = map[string]bool{}
		}
		spoken[arg] = true
	}
	return spoken
}

const rootLong = `kubectl-lite speaks to any Kubernetes API server, with kubectl's names, flags and output.

Objects    TYPE NAME, TYPE/NAME, several of them, or -f FILE|FOLDER|URL|- and -k FOLDER. Types have short names
           (po, deploy, svc, …: 'api-resources' lists them, 'explain TYPE' documents them field by field).
Which      -n NAMESPACE or -A for all; -l app=web,tier!=db by label; --field-selector status.phase=Running by field.
Output     -o wide|json|yaml|name|jsonpath='{.status.phase}'|custom-columns=N:.metadata.name|go-template=…;
           -w keeps on watching. Tables for people, everything else for programs.
Trying     --dry-run=server lets the server check and change nothing; 'diff -f' shows what 'apply -f' would do.
Server     the kubeconfig's current context ($KUBECONFIG, ~/.kube/config, --kubeconfig, --context), or --server and
           --token; --as NAME acts as somebody else; --request-timeout 10s gives up; -v 6 shows the requests.
Trouble    'why TYPE/NAME' says why something is not ready, 'tree' what it owns, 'timeline' what it has been through,
           'get --at 5m' how it was, 'events --for', 'logs', 'describe', 'exec -it' the rest.
Exit code  0 done; 1 failed, or the answer is no; that of the command with exec and run; 130 after Ctrl-C.`

const rootExample = `  kubectl-lite get pods -A -o wide
  kubectl-lite apply -f shop.yaml && kubectl-lite rollout status deploy/web
  kubectl-lite why deploy/web
  kubectl-lite exec -it deploy/web -- sh`

// New is the command tree on the given streams. It is built per invocation and must not be executed twice: the flags of
// one run would linger in the next.
func New(streams genericiooptions.IOStreams) *cobra.Command {
	root, _ := newRoot(streams, nil)
	return root
}

// newRoot is the root command with the verbs that are wanted, or all if that is nil.
func newRoot(streams genericiooptions.IOStreams, wanted map[string]bool) (*cobra.Command, *session) {
	withoutTranslations()
	s := newSession(streams)
	root := &cobra.Command{
		Use:           Name,
		Short:         "A small kubectl for any Kubernetes API server",
		Long:          rootLong,
		Example:       rootExample,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownCommand,
		// There is a command of that name, where it is wanted.
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(streams.In)
	root.SetOut(s.Out)
	root.SetErr(s.ErrOut)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\nSee '%s --help' for usage.", err, cmd.CommandPath())
	})
	s.flags.AddFlags(root.PersistentFlags())
	root.PersistentFlags().BoolVar(&s.warningsAsErrors, "warnings-as-errors", false, "Treat warnings received from the server as errors and exit with a non-zero exit code")
	addVerbosity(root)
	for _, g := range groups() {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, v := range g.verbs {
			if wanted != nil && !wanted[v.name] {
				continue
			}
			cmd := v.build(s)
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	if wanted == nil {
		addCompletions(root, s)
	}
	root.SetHelpCommandGroupID("This tool")
	return root, s
}

// withoutTranslations keeps kubectl's library from reading the translations of its few texts, which takes as long as all else
// that happens at the start.
var withoutTranslations = sync.OnceFunc(func() {
	_ = i18n.SetLoadTranslationsFunc(func() error { return nil }) // fails where they have been read already
})

// addVerbosity declares -v, which makes client-go tell what it sends (6) and what comes back (8).
func addVerbosity(root *cobra.Command) {
	logging := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(logging)
	root.PersistentFlags().AddGoFlag(logging.Lookup("v"))
}

// logVisibly makes what client-go logs visible text as well: it holds errors and, with -v=8, whole answers of servers.
var logVisibly = sync.OnceFunc(func() {
	logging := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(logging)
	klog.SetOutput(&visibleWriter{to: os.Stderr})
	for name, value := range map[string]string{"logtostderr": "false", "one_output": "true", "stderrthreshold": "FATAL"} {
		if err := logging.Set(name, value); err != nil {
			panic(err) // there is no such flag
		}
	}
})

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "\n\nDid you mean this?\n\t" + strings.Join(near, "\n\t") + "\n"
	}
	return errors.New(text)
}

// Main runs one invocation and returns the exit code of the process. It leaves signals alone: verbs that have something to
// tidy up listen for them, all others may be ended at any moment.
func Main(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	if streams.ErrOut == io.Writer(os.Stderr) {
		logVisibly()
	}
	root, s := newRoot(streams, spokenOf(args))
	root.SetArgs(args)
	ran, err := s.runPlugin(ctx, root, args)
	if !ran {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		err = s.countWarnings()
	}
	defer s.finish()
	return report(s.ErrOut, err)
}

// countWarnings is the error of --warnings-as-errors.
func (s *session) countWarnings() error {
	counter, ok := s.warnings.(interface{ WarningCount() int })
	if !s.warningsAsErrors || !ok {
		return nil
	}
	switch n := counter.WarningCount(); n {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%d warning received", n)
	default:
		return fmt.Errorf("%d warnings received", n)
	}
}
