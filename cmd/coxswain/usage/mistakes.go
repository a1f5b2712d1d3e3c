package usage

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/internal/near"
)

// Mistake is an error that the command line alone causes. Its text is for people: it names the flag, argument or
// command, and the expected form.
type Mistake struct{ text string }

func (m *Mistake) Error() string { return m.text }

// Mistakef returns a Mistake.
func Mistakef(format string, args ...any) error { return &Mistake{fmt.Sprintf(format, args...)} }

// ExitCode returns the exit code for an error: 2 for a mistake on the command line, which includes a wrong value of a
// flag, and 1 for every other failure. The text of an error about a value begins with the flag's name.
func ExitCode(err error) int {
	var mistake *Mistake
	switch {
	case err == nil:
		return 0
	case errors.As(err, &mistake), strings.HasPrefix(err.Error(), "--"):
		return 2
	}
	return 1
}

// otherNames are commands that people may look for under another program's name.
var otherNames = map[string]string{
	"start": "up", "run": "up", "server": "up", "cluster": "up", "serve": "up", "create": "up",
	"kube-apiserver": "apiserver", "api-server": "apiserver", "api": "apiserver",
	"kube-controller-manager": "controllers", "controller-manager": "controllers", "controller": "controllers",
	"kube-scheduler": "scheduler", "kubelet": "node", "agent": "node", "nodes": "node",
	"kube-proxy": "proxy", "coredns": "dns", "snapshot": "etcd snapshot", "envtest": "assets", "healthz": "health",
}

// unknownCommand returns the error for a subcommand that does not exist.
func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	closest := near.Names(name, names)
	if other := otherNames[name]; other != "" && !cmd.HasParent() {
		closest = []string{other}
	}
	if name == "kubectl" && !cmd.HasParent() {
		closest = []string{"the program kubectl-lite"}
	}
	if len(closest) == 0 {
		return Mistakef("unknown command %q for %q; --help lists them", name, cmd.CommandPath())
	}
	return Mistakef("unknown command %q for %q; did you mean %s?", name, cmd.CommandPath(), near.List(closest))
}

// UnknownCommand returns the error for commands that look for other commands themselves.
func UnknownCommand(cmd *cobra.Command, name string) error { return unknownCommand(cmd, name) }

// explainArgs returns the error for too few or too many arguments. The command's usage line names the ones it takes.
func explainArgs(cmd *cobra.Command, args []string, err error) error {
	wants := strings.Fields(strings.TrimSuffix(cmd.Use, " [flags]"))[1:]
	path := cmd.CommandPath()
	switch {
	case cmd.HasSubCommands() && len(args) > 0:
		return unknownCommand(cmd, args[0])
	case len(args) < len(wants):
		return Mistakef("%s needs %s", path, strings.Join(wants[len(args):], " and "))
	case len(args) == len(wants):
		return &Mistake{err.Error()}
	}
	extra := args[len(wants)]
	name, _, valued := strings.Cut(extra, "=")
	switch {
	case extra == "true" || extra == "false":
		return Mistakef("%s does not take %q as an argument: a flag takes it after =, as in --profiling=%s", path, extra,
			extra)
	case cmd.Flags().Lookup(name) != nil:
		if !valued && len(args) > len(wants)+1 {
			extra += "=" + args[len(wants)+1]
		}
		return Mistakef("%s does not take %q as an argument; did you mean --%s?", path, args[len(wants)], extra)
	case len(wants) == 0:
		return Mistakef("%s takes no arguments, but got %q", path, extra)
	}
	return Mistakef("%s takes only %s, but also got %q", path, strings.Join(wants, " and "), extra)
}

// explainFlag returns the error for a flag that does not exist, lacks its value or has an invalid one.
func explainFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var valueless *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	var malformed *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &unknown):
		return unknownFlag(cmd, unknown)
	case errors.As(err, &valueless):
		f := valueless.GetFlag()
		return Mistakef("--%s needs a value: %s", f.Name, kindOfValue(f))
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		return Mistakef("--%s: %s", f.Name, explainValue(f, invalid.GetValue(), invalid.Unwrap()))
	case errors.As(err, &malformed):
		return Mistakef("%s is no flag: a name must follow the dashes", malformed.GetSpecifiedFlag())
	}
	return &Mistake{err.Error()}
}

// unknownFlag returns the error for a flag that does not exist, with near names, or with the commands that have it.
func unknownFlag(cmd *cobra.Command, unknown *pflag.NotExistError) error {
	path := cmd.CommandPath()
	var names []string
	for _, f := range flagsOf(cmd) {
		names = append(names, f.Name)
	}
	typed := unknown.GetSpecifiedName()
	if group := unknown.GetSpecifiedShortnames(); group != "" { // typed with one dash
		word, _, _ := strings.Cut(group, "=")
		if len(word) > 1 {
			if closest := near.Names(word, names); len(closest) > 0 {
				return Mistakef("%s has no flag -%s; did you mean --%s?", path, word, strings.Join(closest, " or --"))
			}
		}
		return Mistakef("%s has no flag -%s; --help lists its flags", path, typed)
	}
	if closest := near.Names(typed, names); len(closest) > 0 {
		return Mistakef("%s has no flag --%s; did you mean --%s?", path, typed, strings.Join(closest, " or --"))
	}
	if others := commandsWith(cmd.Root(), typed); len(others) > 0 {
		verb := "have"
		if len(others) == 1 {
			verb = "has"
		}
		return Mistakef("%s has no flag --%s; %s %s it", path, typed,
			strings.ReplaceAll(near.List(others), " or ", " and "), verb)
	}
	return Mistakef("%s has no flag --%s; --help lists its flags", path, typed)
}

// commandsWith returns the paths of the first commands that have a flag.
func commandsWith(cmd *cobra.Command, flag string) (paths []string) {
	if cmd.LocalNonPersistentFlags().Lookup(flag) != nil {
		paths = append(paths, cmd.CommandPath())
	}
	for _, sub := range cmd.Commands() {
		paths = append(paths, commandsWith(sub, flag)...)
	}
	slices.Sort(paths)
	return paths[:min(len(paths), 3)]
}

// kindOfValue describes the values of a flag.
func kindOfValue(f *pflag.Flag) string {
	switch kind := f.Value.Type(); {
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "a whole number"
	case strings.HasPrefix(kind, "float"):
		return "a number"
	case kind == "duration":
		return "a duration, such as 90s, 30m or 24h"
	case kind == "ip":
		return "an IP address"
	case kind == "strings", kind == "stringSlice":
		return "a list with commas"
	case kind == "stringToString", kind == "stringToInt":
		return "a list of pairs NAME=VALUE with commas"
	}
	return f.Usage
}

// explainValue describes why a text is no value of a flag. err is the error of the flag's own parser.
func explainValue(f *pflag.Flag, text string, err error) string {
	switch kind := f.Value.Type(); {
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		if errors.Is(err, strconv.ErrRange) {
			return fmt.Sprintf("%q is too large a number", text)
		}
		return fmt.Sprintf("%q is not a whole number", text)
	case strings.HasPrefix(kind, "float"):
		return fmt.Sprintf("%q is not a number", text)
	case kind == "bool":
		return fmt.Sprintf("%q is neither true nor false", text)
	case kind == "duration":
		return explainDuration(text)
	case kind == "ip":
		return fmt.Sprintf("%q is not an IP address", text)
	case kind == "stringToString":
		return fmt.Sprintf("%q is not a list of pairs NAME=VALUE with commas", text)
	case kind == "stringToInt":
		return fmt.Sprintf("%q is not a list of pairs NAME=NUMBER with commas", text)
	case kind == "strings", kind == "stringSlice":
		return fmt.Sprintf("%q is not a list with commas: %v", text, err)
	}
	return fmt.Sprintf("%q: %v", text, err)
}

func explainDuration(text string) string {
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return fmt.Sprintf("%q lacks a unit: give %ss, %[2]sm or %[2]sh", text, strings.TrimPrefix(text, "+"))
	}
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n < 100_000 {
			return fmt.Sprintf("%q is not a duration: the longest unit is h, as in %dh", text, 24*n)
		}
	}
	return fmt.Sprintf("%q is not a duration, such as 90s, 30m or 24h", text)
}

// OneOf returns an error if a text is not one of some values. It names the nearest one.
func OneOf(text string, values ...string) error {
	if slices.Contains(values, text) {
		return nil
	}
	list := strings.Join(values, ", ")
	if closest := near.Names(text, values); len(closest) > 0 && len(values) > 3 {
		return fmt.Errorf("%q is not one of: %s; did you mean %s?", text, list, near.List(closest))
	}
	return fmt.Errorf("%q is not one of: %s", text, list)
}
