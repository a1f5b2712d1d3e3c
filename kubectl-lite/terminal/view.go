package terminal

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/kubectl/pkg/util/term"
)

// View is a picture on the terminal that is kept up to date. Run shows it on the terminal's alternate screen; Leave
// restores the terminal and prints the last picture below the command.
type View struct {
	out    io.Writer
	render func() []string // called by one goroutine at a time
	paint  func(lines []string) []string
	dirty  atomic.Bool

	lines         []string
	width, height int
}

const (
	// frame is the shortest time between two pictures, and the time within which a new size of the terminal is noticed.
	frame = 100 * time.Millisecond
	// refresh is the longest time between two pictures: ages change without any event.
	refresh = time.Second
)

// Escape sequences of ECMA-48 and xterm.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	toTop       = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// NewView returns a view of the lines that render returns, coloured by paint.
func NewView(out io.Writer, render func() []string, paint func(lines []string) []string) *View {
	return &View{out: out, render: func() []string { return visibleLines(render()) }, paint: paint}
}

// Changed makes the view draw its picture again soon. It may be called by any goroutine.
func (v *View) Changed() { v.dirty.Store(true) }

// visibleLines makes the lines of a picture visible, so that only the view itself moves the cursor.
func visibleLines(lines []string) []string {
	all := make([]string, len(lines))
	for i, line := range lines {
		all[i] = OneLine(line)
	}
	return all
}

// Run shows the view until ctx ends. Only then may Leave be called.
func (v *View) Run(ctx context.Context) {
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

// resized updates the size of the view and reports whether it has changed.
func (v *View) resized() bool {
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

// draw replaces the picture by a single write, so that the terminal does not flicker.
func (v *View) draw() {
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
	_, _ = v.out.Write(b.Bytes()) // a terminal that is closed sends a signal
}

// Leave restores the terminal and prints the whole picture, even if it is higher than the terminal.
func (v *View) Leave() {
	var b bytes.Buffer
	b.WriteString(leaveScreen)
	for _, line := range v.paint(v.render()) {
		b.WriteString(line + "\n")
	}
	_, _ = v.out.Write(b.Bytes())
}

// fitted cuts lines to the terminal's width. The last line that fits its height counts the lines that do not.
func fitted(lines []string, width, height int) []string {
	var fit []string
	for i, line := range lines {
		if i == height-1 && len(lines) > height {
			fit = append(fit, Cut(fmt.Sprintf("… %d more", len(lines)-i), width))
			break
		}
		fit = append(fit, Cut(line, width))
	}
	return fit
}
