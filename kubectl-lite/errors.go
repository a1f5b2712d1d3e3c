package kubectllite

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

// fatal ends a command of kubectl's, with a text for people and an exit code. It is thrown as a panic, which
// caught turns into a value, so that deferred calls run.
type fatal struct {
	message string
	code    int
}

var catching sync.Once

// catchFatal makes kubectl's commands panic with a fatal where they would exit. On a goroutine that kubectl
// started nothing would recover it: there the process exits, as kubectl's does.
func catchFatal() {
	catching.Do(func() {
		cmdutil.BehaviorOnFatal(func(message string, code int) {
			ended := fatal{message, code}
			if !isCaught() {
				os.Exit(report(&visibleWriter{to: os.Stderr}, &ended))
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
		if strings.HasSuffix(frame.Function, ".caught") {
			return true
		}
		if !more {
			return false
		}
	}
}

// caught runs a command and returns the fatal that it panicked with, if any.
func caught(run func()) (f *fatal) {
	catchFatal()
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
		fmt.Fprint(w, strings.TrimSuffix(message, "\n")+"\n")
	}
	return code
}

// explainError is kubectl's text and exit code for an error.
func explainError(err error) (message string, code int) {
	var ended *fatal
	if !errors.As(err, &ended) {
		ended = caught(func() { cmdutil.CheckErr(err) })
	}
	if ended == nil {
		return "", 0
	}
	return ended.message, ended.code
}

// usageErrorf is an error in how the command was called; the text ends with where to read about it.
func usageErrorf(cmd *cobra.Command, format string, args ...any) error {
	return cmdutil.UsageErrorf(cmd, format, args...)
}

// needsSubcommand runs a command that only groups others: its help goes to the error output, because an argument
// is missing.
func (s *session) needsSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageErrorf(cmd, "unknown command %q", strings.Join(args, " "))
	}
	cmd.SetOut(s.ErrOut)
	_ = cmd.Help()
	return errSilent
}

// errorSet collects errors, each text once.
type errorSet struct {
	seen sets.Set[string]
	all  []error
}

func newErrorSet(first error) *errorSet {
	s := &errorSet{seen: sets.New[string]()}
	s.add(first)
	return s
}

func (s *errorSet) add(err error) {
	if err == nil || s.seen.Has(err.Error()) {
		return
	}
	s.seen.Insert(err.Error())
	s.all = append(s.all, err)
}

func (s *errorSet) err() error { return utilerrors.NewAggregate(s.all) }
