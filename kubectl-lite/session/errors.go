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

// ErrSilent ends a command with exit code 1 and no further word.
var ErrSilent = cmdutil.ErrExit

// ExitError ends a command with a code of its own; diff's 1 for "there are differences" is one.
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

// fatal ends a command of kubectl's, with a text for people and an exit code. It is thrown as a panic, which
// caught turns into a value, so that deferred calls run.
type fatal struct {
	message string
	code    int
}

var catching sync.Once

// CatchFatal makes kubectl's commands panic with a fatal where they would exit. On a goroutine that kubectl
// started nothing would recover it: there the process exits, as kubectl's does.
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

// isCaught reports whether this goroutine is in a call of caught.
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

// Report writes the error to w in kubectl's words and returns the exit code.
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

// explainError is kubectl's text and exit code for an error.
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

// UsageErrorf is an error in how the command was called; the text ends with where to read about it.
func UsageErrorf(cmd *cobra.Command, format string, args ...any) error {
	return cmdutil.UsageErrorf(cmd, format, args...)
}

// NeedsSubcommand runs a command that only groups others: its help goes to the error output, because an argument
// is missing.
func (s *Session) NeedsSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return UsageErrorf(cmd, "unknown command %q", strings.Join(args, " "))
	}
	cmd.SetOut(s.ErrOut)
	_ = cmd.Help()
	return ErrSilent
}

// errorSet collects errors, each text once.
type errorSet struct {
	seen sets.Set[string]
	all  []error
}

func NewErrorSet(first error) *errorSet {
	s := &errorSet{seen: sets.New[string]()}
	s.Add(first)
	return s
}

func (s *errorSet) Add(err error) {
	if err == nil || s.seen.Has(err.Error()) {
		return
	}
	s.seen.Insert(err.Error())
	s.all = append(s.all, err)
}

func (s *errorSet) Err() error { return utilerrors.NewAggregate(s.all) }
