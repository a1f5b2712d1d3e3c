package kubectllite

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// errSilent ends a command with exit code 1 and no further word.
var errSilent = cmdutil.ErrExit

// exitError ends a command with a code of its own; diff's 1 for "there are differences" is one.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// fatalHook guards the one hook that kubectl's library has for handing out an error's text and exit code.
var fatalHook sync.Mutex

// report writes the error to w in kubectl's words and returns the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	var exit *exitError
	if errors.As(err, &exit) {
		if exit.err != nil {
			report(w, exit.err)
		}
		return exit.code
	}
	message, code := explainError(err)
	if message != "" {
		if message[len(message)-1] != '\n' {
			message += "\n"
		}
		fmt.Fprint(w, message)
	}
	return code
}

// explainError is kubectl's text and exit code for an error.
func explainError(err error) (message string, code int) {
	fatalHook.Lock()
	defer fatalHook.Unlock()
	defer cmdutil.DefaultBehaviorOnFatal()
	cmdutil.BehaviorOnFatal(func(m string, c int) { message, code = m, c })
	cmdutil.CheckErr(err)
	return message, code
}

// usageErrorf is an error in how the command was called; the text ends with where to read about it.
func usageErrorf(cmd *cobra.Command, format string, args ...any) error {
	return cmdutil.UsageErrorf(cmd, format, args...)
}

// helpErrorf is an error in how the command was called, below the command's help.
func helpErrorf(cmd *cobra.Command, format string, args ...any) error {
	_ = cmd.Help() // to standard output, where it may not fit any more
	return fmt.Errorf(format, args...)
}

// needsSubcommand is what a command does that is nothing but the name of a group: its help goes to the error output, because
// something was missing.
func (s *session) needsSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageErrorf(cmd, "unknown command %q", strings.Join(args, " "))
	}
	cmd.SetOut(s.ErrOut)
	_ = cmd.Help()
	return errSilent
}

// noArguments is for commands that take flags only.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageErrorf(cmd, "unexpected arguments: %v", args)
	}
	return nil
}
