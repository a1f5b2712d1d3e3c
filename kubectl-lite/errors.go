package kubectllite

import (
	"errors"
	"fmt"
	"io"
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
