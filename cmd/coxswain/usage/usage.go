// Package usage makes the help pages of the command line and its answers to mistakes.
//
// A tour. [Install] prepares a command tree. Help shows the flags that most people need first, then all others in
// sections (sections.go is the table). A mistake on the command line is answered in words, with the name that may be
// meant (mistakes.go), and a flag that names a missing file before anything starts (files.go). [ExitCode]
// distinguishes mistakes from failures.
//
// The package knows the names of flags and commands, but not their meaning: each command declares and checks its own.
package usage

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// width is the number of columns of a help page.
const width = 110

// plainFlags is the largest number of flags on a page without sections.
const plainFlags = 14

// Install gives a command and all commands below it their help pages and their answers to mistakes.
func Install(root *cobra.Command) {
	root.SetUsageFunc(printUsage)
	root.SetFlagErrorFunc(explainFlag)
	prepare(root)
}

func prepare(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		prepare(sub)
	}
	if !cmd.Runnable() {
		// cobra shows the help for an unknown subcommand, and reports success
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		}
		return
	}
	if check := cmd.Args; check != nil && cmd.HasParent() {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return explainArgs(cmd, args, err)
			}
			return nil
		}
	}
}

// printUsage prints the part of a help page below the description.
func printUsage(cmd *cobra.Command) error {
	var page strings.Builder
	fmt.Fprintf(&page, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasAvailableSubCommands() {
		printCommands(&page, cmd)
	}
	if cmd.HasExample() {
		fmt.Fprintf(&page, "\nExamples:\n%s\n", cmd.Example)
	}
	printFlags(&page, cmd)
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&page, "\nUse \"%s COMMAND --help\" for more about a command.\n", cmd.CommandPath())
	}
	_, err := io.WriteString(cmd.OutOrStderr(), page.String())
	return err
}

// printCommands prints the subcommands of a command: in sections if the table has any of them.
func printCommands(page *strings.Builder, cmd *cobra.Command) {
	available := slices.DeleteFunc(slices.Clone(cmd.Commands()), func(sub *cobra.Command) bool {
		return !sub.IsAvailableCommand() && sub.Name() != "help"
	})
	padding := 0
	for _, sub := range available {
		padding = max(padding, len(sub.Name()))
	}
	print := func(title string, belongs func(name string) bool) {
		began := false
		for _, sub := range available {
			if !belongs(sub.Name()) {
				continue
			}
			if !began {
				fmt.Fprintf(page, "\n%s:\n", title)
				began = true
			}
			fmt.Fprintf(page, "  %-*s  %s\n", padding, sub.Name(), sub.Short)
		}
	}
	if cmd.HasParent() {
		print("Commands", func(string) bool { return true })
		return
	}
	for _, group := range commandGroups {
		print(group.title, func(name string) bool { return slices.Contains(group.names, name) })
	}
	print("Others", func(name string) bool { return groupOf(name) == "" })
}

// printFlags prints the flags of a command, with its parents' persistent ones.
func printFlags(page *strings.Builder, cmd *cobra.Command) {
	flags := flagsOf(cmd)
	if len(flags) == 0 {
		return
	}
	if len(flags) <= plainFlags {
		printSection(page, "Flags", flags)
		return
	}
	first := common[cmd.CommandPath()]
	var shown []*pflag.Flag
	for _, name := range first {
		if i := slices.IndexFunc(flags, func(f *pflag.Flag) bool { return f.Name == name }); i >= 0 {
			shown = append(shown, flags[i])
		}
	}
	printSection(page, "Common flags", shown)
	for _, title := range titles() {
		var members []*pflag.Flag
		for _, f := range flags {
			if !slices.Contains(shown, f) && SectionOf(f) == title {
				members = append(members, f)
			}
		}
		printSection(page, title, members)
	}
}

// flagsOf returns the flags of a command that a help page shows, by name.
func flagsOf(cmd *cobra.Command) (flags []*pflag.Flag) {
	add := func(f *pflag.Flag) {
		if !f.Hidden && f.Deprecated == "" && !slices.Contains(flags, f) {
			flags = append(flags, f)
		}
	}
	cmd.LocalFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	slices.SortFunc(flags, func(a, b *pflag.Flag) int { return strings.Compare(a.Name, b.Name) })
	return flags
}

// printSection prints flags in their order, or no section if there are none.
func printSection(page *strings.Builder, title string, flags []*pflag.Flag) {
	if len(flags) == 0 {
		return
	}
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.SortFlags = false
	for _, f := range flags {
		set.AddFlag(f)
	}
	fmt.Fprintf(page, "\n%s:\n%s", title, set.FlagUsagesWrapped(width))
}
