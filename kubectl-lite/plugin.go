package kubectllite

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// pluginPrefixes begin the names of plugins, which are programs on the PATH. A plugin for kubectl-lite takes precedence
// over one for kubectl.
var pluginPrefixes = []string{"kubectl_lite", "kubectl"}

// runPlugin runs the plugin that the arguments name, unless they name a command of this program. It returns whether one
// ran, and an error with the plugin's exit code.
func runPlugin(ctx context.Context, s *session.Session, root *cobra.Command, args []string) (bool, error) {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return false, nil
	}
	if slices.Contains([]string{"help", "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd},
		args[0]) {
		return false, nil
	}
	if cmd, _, err := root.Find(args); err != nil || cmd != root {
		return false, nil
	}
	path, rest := findPlugin(args)
	if path == "" {
		return false, nil
	}
	plugin := exec.CommandContext(ctx, path, rest...)
	plugin.Stdin, plugin.Stdout, plugin.Stderr = s.Verbatim.In, s.Verbatim.Out, s.Verbatim.ErrOut
	// Ctrl-C reaches the plugin too, which is in the terminal's foreground. This process ignores it: it must live
	// until it can return the plugin's exit code.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	err := plugin.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return true, &session.ExitError{Code: ended.ExitCode()}
	}
	return true, err
}

// findPlugin finds the plugin with the longest name. The other arguments are its own. A flag ends a name.
func findPlugin(args []string) (path string, rest []string) {
	end := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "-") })
	if end < 0 {
		end = len(args)
	}
	words := make([]string, end)
	for i, arg := range args[:end] {
		words[i] = strings.ReplaceAll(arg, "-", "_")
	}
	for n := end; n > 0; n-- {
		for _, prefix := range pluginPrefixes {
			if path, err := exec.LookPath(prefix + "-" + strings.Join(words[:n], "-")); err == nil {
				return path, args[n:]
			}
		}
	}
	return "", nil
}
