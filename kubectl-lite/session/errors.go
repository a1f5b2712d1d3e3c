package session

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

// ErrSilent ends a command with exit code 1 and without a message.
var ErrSilent = cmdutil.ErrExit

// ExitError ends a command with its own exit code, such as 1 of diff for "there are differences". Err may be nil.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// fatal is the error with which a command of kubectl ends its process: a message and an exit code. It is thrown as a
// panic, which Caught recovers, so that deferred calls run.
type fatal struct {
	message string
	code    int
}

var catching sync.Once

// CatchFatal makes kubectl's commands panic with a fatal instead of ending the process. A goroutine that kubectl starts
// has no caller that recovers: there the process exits, as kubectl's does.
func CatchFatal() {
	catching.Do(func() {
		cmdutil.BehaviorOnFatal(func(message string, code int) {
			ended := fatal{message, code}
			if !isCaught() {
				os.Exit(Report(terminal.NewWriter(os.Stderr), &ended))
			}
			panic(ended)
		})
	})
}

// isCaught reports whether this goroutine is in a call of Caught.
func isCaught() bool {
	callers := make([]uintptr, 256)
	frames := runtime.CallersFrames(callers[:runtime.Callers(0, callers)])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, ".Caught") {
			return true
		}
		if !more {
			return false
		}
	}
}

// Caught runs a command and returns the fatal that it panicked with, if any.
func Caught(run func()) (f *fatal) {
	CatchFatal()
	defer func() {
		switch thrown := recover().(type) {
		case nil:
		case fatal:
			f = &thrown
		default:
			panic(thrown)
		}
	}()
	run()
	return nil
}

func (f *fatal) Error() string { return f.message }

// Report writes the error to w in kubectl's words and returns the exit code of the process.
func Report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	var exit *ExitError
	if errors.As(err, &exit) {
		if exit.Err != nil {
			Report(w, exit.Err)
		}
		return exit.Code
	}
	message, code := explainError(err)
	if message != "" {
		fmt.Fprint(w, strings.TrimSuffix(message, "\n")+"\n")
	}
	return code
}

// explainError returns kubectl's message and exit code for an error.
func explainError(err error) (message string, code int) {
	var ended *fatal
	if !errors.As(err, &ended) {
		ended = Caught(func() { cmdutil.CheckErr(err) })
	}
	if ended == nil {
		return "", 0
	}
	return ended.message, ended.code
}

// UsageErrorf returns an error about the arguments of a command. Its text ends with a reference to the help.
func UsageErrorf(cmd *cobra.Command, format string, args ...any) error {
	return cmdutil.UsageErrorf(cmd, format, args...)
}

// NeedsSubcommand runs a command that only groups others. It prints the help on the error stream, because the name of a
// subcommand is missing.
func (s *Session) NeedsSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return UsageErrorf(cmd, "unknown command %q", strings.Join(args, " "))
	}
	cmd.SetOut(s.ErrOut)
	_ = cmd.Help()
	return ErrSilent
}

// ErrorSet collects errors and keeps the first one of each text.
type ErrorSet struct {
	seen sets.Set[string]
	all  []error
}

// NewErrorSet returns a set with one error, or an empty one if first is nil.
func NewErrorSet(first error) *ErrorSet {
	s := &ErrorSet{seen: sets.New[string]()}
	s.Add(first)
	return s
}

// Add adds an error that is not nil.
func (s *ErrorSet) Add(err error) {
	if err == nil || s.seen.Has(err.Error()) {
		return
	}
	s.seen.Insert(err.Error())
	s.all = append(s.all, err)
}

// Err returns an aggregate of all errors, or nil.
func (s *ErrorSet) Err() error { return utilerrors.NewAggregate(s.all) }
