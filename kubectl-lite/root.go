package kubectllite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
)

// Name is what the binary is called; usage texts and completion scripts speak of it.
const Name = "kubectl-lite"

// group is one heading of the help page and the verbs below it.
type group struct {
	title string
	verbs []func(*session) *cobra.Command
}

// groups are all verbs, in the order of the help page. To add a verb, write its file and name it here.
func groups() []group {
	return []group{
		{"Read", []func(*session) *cobra.Command{newGet, newDescribe, newTree, newWhy, newTimeline, newEvents, newExplain, newDiff, newWait}},
		{"Change", []func(*session) *cobra.Command{newApply, newCreate, newReplace, newEdit, newPatch, newSet, newLabel, newAnnotate, newExpose, newTTL, newDelete}},
		{"Run", []func(*session) *cobra.Command{newScale, newRollout, newLogs}},
		{"Nodes", []func(*session) *cobra.Command{newCordon, newUncordon, newDrain, newTaint}},
		{"The cluster", []func(*session) *cobra.Command{newClusterInfo, newTop, newAPIResources, newAPIVersions, newAuth}},
		{"This tool", []func(*session) *cobra.Command{newConfig, newVersion}},
	}
}

// New is the command tree on the given streams. It is built per invocation and must not be executed twice: the flags of
// one run would linger in the next.
func New(streams genericiooptions.IOStreams) *cobra.Command {
	root, _ := newRoot(streams)
	return root
}

func newRoot(streams genericiooptions.IOStreams) (*cobra.Command, *session) {
	s := newSession(streams)
	root := &cobra.Command{
		Use:           Name,
		Short:         "A small kubectl for any Kubernetes API server",
		Long:          "kubectl-lite speaks to any Kubernetes API server, with kubectl's names, flags and output.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\nSee '%s --help' for usage.", err, cmd.CommandPath())
	})
	s.flags.AddFlags(root.PersistentFlags())
	root.PersistentFlags().BoolVar(&s.warningsAsErrors, "warnings-as-errors", false, "Treat warnings received from the server as errors and exit with a non-zero exit code")
	addVerbosity(root)
	for _, g := range groups() {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, verb := range g.verbs {
			cmd := verb(s)
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	root.SetHelpCommandGroupID("This tool")
	root.SetCompletionCommandGroupID("This tool")
	return root, s
}

// addVerbosity declares -v, which makes client-go tell what it sends (6) and what comes back (8).
func addVerbosity(root *cobra.Command) {
	logging := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(logging)
	root.PersistentFlags().AddGoFlag(logging.Lookup("v"))
}

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
	root, s := newRoot(streams)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = s.countWarnings()
	}
	return report(streams.ErrOut, err)
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
