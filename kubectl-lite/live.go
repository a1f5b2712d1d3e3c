package kubectllite

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/kubectl/pkg/util/term"
)

// liveView is a picture on the terminal that is kept up to date. While it lasts it has a screen of its own; when
// it ends the terminal is restored, with the last picture printed below the command.
type liveView struct {
	out    io.Writer
	render func() []string // called by one goroutine at a time
	paint  func(lines []string) []string
	dirty  atomic.Bool

	lines         []string
	width, height int
}

const (
	// frame is how often a picture is drawn at most; a size that changed is noticed as fast.
	frame = 100 * time.Millisecond
	// refresh is how often it is drawn at least, for the sake of ages.
	refresh = time.Second
)

// Escape sequences of ECMA-48 and xterm.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // a screen of its own, no cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	toTop       = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// canLive reports whether standard output is a terminal that can show a live view.
func (s *session) canLive() bool {
	return printers.IsTerminal(s.verbatim.Out) && os.Getenv("TERM") != "dumb"
}

// interrupted is the exit code of a process that Ctrl-C ended.
const interrupted = 130

// live shows the result of render, as often as work calls changed, until work returns. Ctrl-C cancels the context
// of work, and the exit code is that of a program that the signal ended.
func (s *session) live(ctx context.Context, render func() []string,
	work func(ctx context.Context, changed func()) error) error {
	ctx, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()
	v := &liveView{out: s.verbatim.Out, render: func() []string { return visibleLines(render()) }, paint: s.painted}
	drawing, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s.held.hold(true)
	running.Go(func() { v.run(drawing) })
	err := work(ctx, func() { v.dirty.Store(true) })
	stop()
	running.Wait()
	v.leave()
	s.held.hold(false)
	if ctx.Err() != nil {
		return &exitError{code: interrupted}
	}
	return err
}

// visibleLines are the lines of a picture, in which nothing moves the cursor but the view itself.
func visibleLines(lines []string) []string {
	all := make([]string, len(lines))
	for i, line := range lines {
		all[i] = oneLine(line)
	}
	return all
}

func (v *liveView) run(ctx context.Context) {
	fmt.Fprint(v.out, enterScreen)
	ticks := time.NewTicker(frame)
	defer ticks.Stop()
	var drawn time.Time
	for {
		if v.dirty.Swap(false) || v.resized() || time.Since(drawn) >= refresh {
			v.draw()
			drawn = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

func (v *liveView) resized() bool {
	size := term.TTY{Out: v.out}.GetSize()
	if size == nil || size.Width == 0 || size.Height == 0 {
		size = &term.TerminalSize{Width: 80, Height: 24}
	}
	changed := v.width != int(size.Width) || v.height != int(size.Height)
	v.width, v.height = int(size.Width), int(size.Height)
	if changed {
		v.lines = nil
	}
	return changed
}

// draw writes the picture over the one before in a single write, so that nothing flickers.
func (v *liveView) draw() {
	lines := fitted(v.render(), v.width, v.height)
	if v.lines != nil && slices.Equal(lines, v.lines) {
		return
	}
	v.lines = lines
	var b bytes.Buffer
	b.WriteString(toTop)
	for i, line := range v.paint(lines) {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line)
		b.WriteString(clearLine)
	}
	b.WriteString(clearBelow)
	_, _ = v.out.Write(b.Bytes()) // a terminal that is gone is noticed by the signal that it sends
}

// leave gives the terminal back and prints the whole picture, however long it is.
func (v *liveView) leave() {
	var b bytes.Buffer
	b.WriteString(leaveScreen)
	for _, line := range v.paint(v.render()) {
		b.WriteString(line + "\n")
	}
	_, _ = v.out.Write(b.Bytes())
}

// fitted cuts lines to the terminal's width, and leaves out those for which it is not high enough.
func fitted(lines []string, width, height int) []string {
	var fit []string
	for i, line := range lines {
		if i == height-1 && len(lines) > height {
			fit = append(fit, cut(fmt.Sprintf("… %d more", len(lines)-i), width))
			break
		}
		fit = append(fit, cut(line, width))
	}
	return fit
}

func cut(line string, width int) string {
	line = strings.TrimRight(line, " ")
	runes := []rune(line)
	if len(runes) <= width {
		return line
	}
	return string(runes[:width])
}
