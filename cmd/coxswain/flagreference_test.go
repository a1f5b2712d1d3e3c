package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "renew docs/flags.md")

// flagsIntro is the part of the page before the commands.
const flagsIntro = `# The flags of coxswain

Every command with its flags, their defaults and the text of ` + "`--help`" + `. The page is made from the program:
` + "`go test ./cmd/coxswain -run TestFlags -update`" + ` renews it. Flags of Kubernetes' components have their names and
meaning. [operations.md](operations.md) explains the important ones, and [flags-kubectl-lite.md](flags-kubectl-lite.md)
has those of ` + "`kubectl-lite`" + `. The program behaves like kube-apiserver if it is called so, for envtest;
` + "`kube-apiserver --help`" + ` lists these flags.

`

// TestFlags_AreInTheDocuments compares docs/flags.md with the commands.
func TestFlags_AreInTheDocuments(t *testing.T) {
	t.Parallel()
	const file = "../../docs/flags.md"
	page := flagsIntro + flagsPage(newCommand())
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(page), 0o644))
		return
	}
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(raw), page, "the flags have changed: go test ./cmd/coxswain -run TestFlags -update")
}

// A row escapes the separator of columns, and leaves out defaults that say nothing.
func TestFlags_BecomeRowsOfATable(t *testing.T) {
	t.Parallel()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.StringP("output", "o", "", "json|yaml")
	fs.Bool("quiet", false, "print\n nothing")
	fs.Bool("loud", true, "")
	fs.StringSlice("names", []string{"a", "b"}, "the `NAME`s")
	fs.StringSlice("none", nil, "")
	fs.IP("address", nil, "")
	fs.String("secret", "", "")
	require.NoError(t, fs.MarkHidden("secret"))
	require.Equal(t, "| `--address ip` | |  |\n"+
		"| `--loud` | `true` |  |\n"+
		"| `--names NAME` | `a,b` | the NAMEs |\n"+
		"| `--none strings` | |  |\n"+
		"| `-o`, `--output string` | | json\\|yaml |\n"+
		"| `--quiet` | | print nothing |\n", flagRows(fs))
}

// flagsPage returns a section for each command that can be run, in the order of the help.
func flagsPage(root *cobra.Command) string {
	var page strings.Builder
	fmt.Fprintf(&page, "## All commands\n\n%s", flagTable(root.PersistentFlags()))
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if c.IsAvailableCommand() && c != root {
			fmt.Fprintf(&page, "\n## %s\n\n%s.\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."))
			if table := flagTable(c.NonInheritedFlags()); table != "" {
				fmt.Fprintf(&page, "\n%s", table)
			}
		}
		for _, sub := range c.Commands() {
			if sub.Name() != "completion" && sub.Name() != "help" { // cobra's own
				visit(sub)
			}
		}
	}
	visit(root)
	return page.String()
}

// flagTable returns the flags as a table, or "" if there are none.
func flagTable(fs *pflag.FlagSet) string {
	rows := flagRows(fs)
	if rows == "" {
		return ""
	}
	return "| flag | default | |\n|---|---|---|\n" + rows
}

func flagRows(fs *pflag.FlagSet) string {
	var rows strings.Builder
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := strings.TrimSpace("--" + f.Name + " " + value)
		if f.Shorthand != "" {
			rows.WriteString("| `-" + f.Shorthand + "`, `" + name + "` |")
		} else {
			rows.WriteString("| `" + name + "` |")
		}
		if text := flagDefault(f); text != "" {
			rows.WriteString(" `" + text + "`")
		}
		usage = strings.ReplaceAll(strings.Join(strings.Fields(usage), " "), "|", `\|`)
		fmt.Fprintf(&rows, " | %s |\n", usage)
	})
	return rows.String()
}

// flagDefault returns a default as it would be given, or "" if it is empty.
func flagDefault(f *pflag.Flag) string {
	text := f.DefValue
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		text = text[1 : len(text)-1]
	}
	if text == "<nil>" || text == "false" && f.Value.Type() == "bool" {
		return ""
	}
	return text
}
