package kubectllite

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kuberccmd "k8s.io/kubectl/pkg/cmd/kuberc"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/kuberc"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

func newKuberc(s *session.Session) *cobra.Command {
	return mount(func(_ cmdutil.Factory, streams genericiooptions.IOStreams) *cobra.Command {
		return kuberccmd.NewCmdKubeRC(streams)
	})(s)
}

// addKuberc declares --kuberc.
func addKuberc(root *cobra.Command) { kuberc.NewPreferences().AddFlags(root.PersistentFlags()) }

// hasPreferences reports whether a kuberc may change what the arguments mean. Its commands are not among the arguments,
// so all commands must be built.
func hasPreferences(args []string) bool {
	if cmdutil.KubeRC.IsDisabled() {
		return false
	}
	path, explicit, err := kuberc.LoadKuberc(kubercOf(args))
	if err != nil || explicit {
		return true // Apply reports the error
	}
	_, err = os.Stat(path)
	return path != "" && err == nil
}

// applyPreferences applies the user's kuberc to the commands: aliases, default values of flags, and the policy for
// credential plugins. It returns the arguments with the ones of an alias.
func applyPreferences(root *cobra.Command, s *session.Session, args []string) ([]string, error) {
	// With Args, cobra finds the root for an unknown command, which is the name of an alias.
	unknown := root.Args
	root.Args = nil
	defer func() { root.Args = unknown }()
	all, err := kuberc.NewPreferences().Apply(root, s.Flags, append([]string{Name}, args...), s.ErrOut)
	if err != nil {
		return nil, fmt.Errorf("apply preferences: %w", err)
	}
	return all[1:], nil
}

// kubercOf returns the value of --kuberc, before the flags are parsed.
func kubercOf(args []string) string {
	for i, arg := range args {
		switch value, ok := strings.CutPrefix(arg, "--kuberc="); {
		case arg == "--":
			return ""
		case ok:
			return value
		case arg == "--kuberc" && i+1 < len(args):
			return args[i+1]
		}
	}
	return ""
}

// preferredArgs returns the flags and arguments that a kuberc adds to one command. New commands need them before the
// command line is parsed.
func preferredArgs(args []string, command string) []string {
	if cmdutil.KubeRC.IsDisabled() {
		return nil
	}
	preference, err := kuberc.DefaultGetPreferences(kubercOf(args), io.Discard)
	if err != nil || preference == nil {
		return nil
	}
	var added []string
	for _, one := range preference.Defaults {
		if one.Command == command {
			for _, option := range one.Options {
				added = append(added, "--"+option.Name+"="+option.Default)
			}
		}
	}
	for _, alias := range preference.Aliases {
		if alias.Command != command || !slices.Contains(args, alias.Name) {
			continue
		}
		for _, option := range alias.Options {
			added = append(added, "--"+option.Name+"="+option.Default)
		}
		added = append(append(added, alias.PrependArgs...), alias.AppendArgs...)
	}
	return added
}
