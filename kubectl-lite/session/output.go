package session

import (
	"context"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

// OutFor returns the stream for the output of -o. Tables are for people. Documents are for programs and must not be
// changed.
func (s *Session) OutFor(print *genericclioptions.PrintFlags) io.Writer {
	if IsDocument(*print.OutputFormat, *print.TemplatePrinterFlags.TemplateArgument) {
		return s.Verbatim.Out
	}
	return s.Out
}

// IsDocument reports whether a value of -o makes a document for programs. --template without -o makes one as well.
func IsDocument(output, template string) bool {
	format, _, _ := strings.Cut(output, "=")
	switch format {
	case "wide", "custom-columns", "custom-columns-file", "plaintext", "plaintext-openapiv2":
		return false
	case "":
		return template != ""
	}
	return true
}

// Colored adds the flag --color to a command. Depending on it, a painter that begin returns colours the command's
// output for people.
func (s *Session) Colored(cmd *cobra.Command, begin func() terminal.Painter) *cobra.Command {
	mode := cmd.Flags().String("color", "auto", "Colour output for people. One of: (auto, always, "+
		"never). auto does so on a terminal, unless NO_COLOR is set.")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch *mode {
		case "auto":
			if printers.AllowsColorOutput(s.Verbatim.Out) && os.Getenv("TERM") != "dumb" {
				s.paint(begin)
			}
		case "always":
			s.paint(begin)
		case "never":
		default:
			return UsageErrorf(cmd, "--color must be 'auto', 'always' or 'never'")
		}
		return run(cmd, args)
	}
	return cmd
}

// paint colours the output for people from now on.
func (s *Session) paint(begin func() terminal.Painter) {
	s.painter = begin
	if out, ok := s.Out.(*terminal.Writer); ok {
		out.SetPainter(begin())
	}
}

// painted colours a whole picture.
func (s *Session) painted(lines []string) []string {
	if s.painter == nil {
		return lines
	}
	paint := s.painter()
	all := make([]string, len(lines))
	for i, line := range lines {
		all[i] = paint(line)
	}
	return all
}

// CanLive reports whether standard output is a terminal that can show a live view (Live).
func (s *Session) CanLive() bool {
	return printers.IsTerminal(s.Verbatim.Out) && os.Getenv("TERM") != "dumb"
}

// Interrupted is the exit code of a process that Ctrl-C ended.
const Interrupted = 130

// Live shows the lines of render until work returns, and draws them again soon after work calls changed. Ctrl-C cancels
// the context of work; the exit code is then that of a program that the signal ended. Warnings wait until the view has
// left the terminal.
func (s *Session) Live(ctx context.Context, render func() []string,
	work func(ctx context.Context, changed func()) error) error {
	ctx, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()
	v := terminal.NewView(s.Verbatim.Out, render, s.painted)
	drawing, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s.warningOut.hold(true)
	running.Go(func() { v.Run(drawing) })
	err := work(ctx, v.Changed)
	stop()
	running.Wait()
	v.Leave()
	s.warningOut.hold(false)
	if ctx.Err() != nil {
		return &ExitError{Code: Interrupted}
	}
	return err
}
