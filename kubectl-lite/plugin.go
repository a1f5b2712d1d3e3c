package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// pluginPrefixes begin the names of programs on the PATH that are commands of this one. A plugin that is made for kubectl-lite
// goes before one for kubectl.
var pluginPrefixes = []string{"kubectl_lite", "kubectl"}

func newPlugin(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "plugin [flags]", Short: "Provides utilities for interacting with plugins",
		Long: `Programs on the PATH whose names begin with kubectl- or kubectl_lite- are commands: 'kubectl-lite foo bar' runs
kubectl_lite-foo-bar, kubectl-foo-bar or kubectl-foo, the first that there is. A dash in a command is an underscore in the name.
A plugin never hides a command of kubectl-lite's own.`,
		RunE: s.needsSubcommand,
	}
	var nameOnly bool
	list := &cobra.Command{
		Use: "list", Short: "List all visible plugin executables on a user's PATH", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return s.listPlugins(New(s.IOStreams), nameOnly) },
	}
	list.Flags().BoolVar(&nameOnly, "name-only", false, "If true, display only the binary name of each plugin, rather than its full path")
	cmd.AddCommand(list)
	return cmd
}

// runPlugin runs the plugin that the arguments name, where they name no command of this program. It reports whether one ran,
// and its error, which has the plugin's exit code.
func (s *session) runPlugin(ctx context.Context, root *cobra.Command, args []string) (bool, error) {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return false, nil
	}
	if slices.Contains([]string{"help", "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}, args[0]) {
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
	plugin.Stdin, plugin.Stdout, plugin.Stderr = s.verbatim.In, s.verbatim.Out, s.verbatim.ErrOut
	// The plugin is in the terminal's foreground and answers Ctrl-C itself; this process must live to hand on its exit code.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	err := plugin.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return true, &exitError{code: ended.ExitCode()}
	}
	return true, err
}

// findPlugin looks for the longest name first: its arguments are what is left over. A flag ends a name.
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

func (s *session) listPlugins(root *cobra.Command, nameOnly bool) error {
	found := s.pluginFiles(os.Getenv("PATH"))
	if len(found) == 0 {
		return fmt.Errorf("unable to find any kubectl plugins in your PATH")
	}
	fmt.Fprint(s.Out, "The following compatible plugins are available:\n\n")
	warnings := 0
	seen := map[string]string{}
	for _, path := range found {
		name := filepath.Base(path)
		if nameOnly {
			fmt.Fprintln(s.Out, name)
		} else {
			fmt.Fprintln(s.Out, path)
		}
		for _, warning := range pluginWarnings(root, path, seen[name]) {
			fmt.Fprintf(s.ErrOut, "  - warning: %s\n", warning)
			warnings++
		}
		if seen[name] == "" {
			seen[name] = path
		}
	}
	switch warnings {
	case 0:
		return nil
	case 1:
		return errors.New("one plugin warning was found")
	}
	return fmt.Errorf("%d plugin warnings were found", warnings)
}

// pluginFiles are the files in the folders of a PATH that are named like plugins.
func (s *session) pluginFiles(path string) []string {
	var found []string
	visited := map[string]bool{}
	for _, dir := range filepath.SplitList(path) {
		if strings.TrimSpace(dir) == "" || visited[dir] {
			continue
		}
		visited[dir] = true
		entries, err := os.ReadDir(dir)
		if err != nil {
			fmt.Fprintf(s.ErrOut, "Unable to read directory %q from your PATH: %v. Skipping...\n", dir, err)
			continue
		}
		for _, entry := range entries {
			isPlugin := func(prefix string) bool { return strings.HasPrefix(entry.Name(), prefix+"-") }
			if !entry.IsDir() && entry.Name() != Name && slices.ContainsFunc(pluginPrefixes, isPlugin) {
				found = append(found, filepath.Join(dir, entry.Name()))
			}
		}
	}
	return found
}

// pluginWarnings are why a file will not run as a plugin.
func pluginWarnings(root *cobra.Command, path, shadowedBy string) []string {
	var all []string
	if info, err := os.Stat(path); err == nil && info.Mode()&0o111 == 0 {
		all = append(all, fmt.Sprintf("%s identified as a kubectl plugin, but it is not executable", path))
	}
	if shadowedBy != "" {
		all = append(all, fmt.Sprintf("%s is overshadowed by a similarly named plugin: %s", path, shadowedBy))
	}
	name := filepath.Base(path)
	if cmd, _, err := root.Find(strings.Split(name, "-")[1:]); err == nil && cmd != root {
		all = append(all, fmt.Sprintf("%s overwrites existing command: %q", name, cmd.CommandPath()))
	}
	return all
}
