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

// View is a picture on the terminal that is kept up to date. While it lasts it has a screen of its own; when
// it ends the terminal is restored, with the last picture printed below the command.
type View struct {
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

// NewView returns a view of the lines that render returns.
func NewView(out io.Writer, render func() []string, paint func(lines []string) []string) *View {
	return &View{out: out, render: func() []string { return visibleLines(render()) }, paint: paint}
}

// Changed makes the view draw its picture again soon. It may be called by any goroutine.
func (v *View) Changed() { v.dirty.Store(true) }

// visibleLines are the lines of a picture, in which nothing moves the cursor but the view itself.
func visibleLines(lines []string) []string {
	all := make([]string, len(lines))
	for i, line := range lines {
		all[i] = OneLine(line)
	}
	return all
}

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

// draw writes the picture over the one before in a single write, so that nothing flickers.
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
	_, _ = v.out.Write(b.Bytes()) // a terminal that is gone is noticed by the signal that it sends
}

// Leave gives the terminal back and prints the whole picture, however long it is.
func (v *View) Leave() {
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
			fit = append(fit, Cut(fmt.Sprintf("… %d more", len(lines)-i), width))
			break
		}
		fit = append(fit, Cut(line, width))
	}
	return fit
}
