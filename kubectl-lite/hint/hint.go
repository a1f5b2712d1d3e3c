// Package hint finds likely mistakes in a command line that has failed or found no objects: a namespace that does not
// exist, and names of kinds, objects, flags and contexts that are near existing ones.
//
// It reads kubectl's messages, because kubectl's own commands return only these, and asks the server. kubectl-lite
// prints the hints on the error stream, after kubectl's text; output and exit code are not changed.
package hint

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/internal/near"
	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// Prefix begins each line with a hint.
const Prefix = "hint: "

const (
	// timeout limits the time for all hints of a command.
	timeout = 3 * time.Second
	// limit is the maximum number of hints, since a command may name many objects.
	limit = 3
)

// finder looks for the mistake behind a message of kubectl's, by the parts that a pattern has found in it. It returns
// "" if there is no hint.
type finder func(ctx context.Context, f *failure, parts []string) string

// rules pair kubectl's messages with the finders of the mistakes behind them.
var rules = []struct {
	message *regexp.Regexp
	find    finder
}{
	{regexp.MustCompile(`^No (?:resources|events) found(?: in (\S+) namespace)?\.?$`), emptyNamespace},
	{regexp.MustCompile(`the server doesn't have a resource type "([^"]+)"$`), nearKinds},
	{regexp.MustCompile(`no matches for kind "([^"]+)" in (?:version|group) "([^"]*)"`), servedKinds},
	{regexp.MustCompile(`(?:\(NotFound\): |: )(?:.*: )?(\S+) "([^"]+)" not found(?: in namespace "[^"]+")?$`), nearObjects},
	{regexp.MustCompile(`unknown flag: --(\S+)$`), nearFlags},
	{regexp.MustCompile(`context was not found for specified context: (.+)$`), nearContexts},
	{regexp.MustCompile(`no context exists with the name: "(.+)"$`), nearContexts},
}

// failure is the command that has failed or found no objects.
type failure struct {
	*session.Session
	cmd *cobra.Command
}

// For returns hints about the text that a command printed on the error stream. root is the command tree, args the
// command line.
func For(ctx context.Context, s *session.Session, root *cobra.Command, args []string, printed string) []string {
	cmd, _, err := root.Find(args)
	if err != nil {
		cmd = root
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	f := &failure{s, cmd}
	var hints []string
	for line := range strings.Lines(printed) {
		for _, rule := range rules {
			parts := rule.message.FindStringSubmatch(strings.TrimRight(line, "\n"))
			if parts == nil {
				continue
			}
			if text := rule.find(ctx, f, parts[1:]); text != "" && !slices.Contains(hints, text) {
				hints = append(hints, text)
			}
			if len(hints) == limit {
				return hints
			}
			break
		}
	}
	return hints
}

// didYouMean formats names that are near, or returns "".
func didYouMean(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("did you mean %s?", near.List(names))
}

func nearFlags(_ context.Context, f *failure, parts []string) string {
	typed, _, _ := strings.Cut(parts[0], "=")
	var names []string
	f.cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			names = append(names, flag.Name)
		}
	})
	f.cmd.InheritedFlags().VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	flags := near.Names(typed, names)
	for i := range flags {
		flags[i] = "--" + flags[i]
	}
	return didYouMean(flags)
}

func nearContexts(_ context.Context, f *failure, parts []string) string {
	if file := f.cmd.Flag("kubeconfig"); file != nil { // config has a flag of that name of its own
		*f.Flags.KubeConfig = file.Value.String()
	}
	config, err := f.ToRawKubeConfigLoader().ConfigAccess().GetStartingConfig()
	if err != nil {
		return ""
	}
	names := slices.Sorted(maps.Keys(config.Contexts))
	if text := didYouMean(near.Names(parts[0], names)); text != "" {
		return text
	}
	if len(names) == 0 {
		return "the kubeconfig has no contexts"
	}
	return "the kubeconfig has the contexts " + strings.Join(names[:min(len(names), 10)], ", ")
}
