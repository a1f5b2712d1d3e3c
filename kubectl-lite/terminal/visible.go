package terminal

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf8"
)

// Text of other origin (names, messages, data, errors of a server) may contain sequences that control a terminal: they
// set its title, clear it, or overwrite earlier output. A session's Out and ErrOut are Writers, which make such
// characters visible. Data that must not change, and the control sequences of this program, go to the session's
// Verbatim streams instead.

// Visible replaces every character that controls a terminal: C0 becomes ^[, carriage return \r as with kubectl, C1
// and characters that change the direction of text \u009b, and bytes that are not UTF-8 \x9b. Newlines and tabs
// stay.
func Visible(text string) string {
	if isPlain(text) {
		return text
	}
	var b strings.Builder
	b.Grow(len(text) + len(text)/8)
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if name := nameOfControl(r, text[:size]); name != "" {
			b.WriteString(name)
		} else {
			b.WriteString(text[:size])
		}
		text = text[size:]
	}
	return b.String()
}

// OneLine returns visible text without newlines and tabs. Inside a table or view, a message of several lines must not
// look like further rows.
func OneLine(text string) string {
	return linesAsText.Replace(Visible(text))
}

var linesAsText = strings.NewReplacer("\n", `\n`, "\t", `\t`)

// isPlain reports whether text is ASCII without control characters except newlines and tabs. Nearly all text is.
func isPlain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' && c != '\n' && c != '\t' || c >= 0x7f {
			return false
		}
	}
	return true
}

// nameOfControl returns the replacement of a character that must not reach a terminal, and "" for any other character.
func nameOfControl(r rune, encoded string) string {
	switch {
	case r == '\n' || r == '\t':
		return ""
	case r == '\r':
		return `\r`
	case r < ' ':
		return "^" + string(r+'@')
	case r == 0x7f:
		return "^?"
	case r >= 0x80 && r <= 0x9f, // C1: U+009B begins a control sequence as ESC [ does
		r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, // embedding, overriding and isolating a direction
		r == 0x2028, r == 0x2029: // line and paragraph separators
		return fmt.Sprintf(`\u%04x`, r)
	case r == utf8.RuneError && len(encoded) == 1:
		return fmt.Sprintf(`\x%02x`, encoded[0])
	}
	return ""
}

// EscapeControls returns a JSON document with the same meaning and without characters that control a terminal.
func EscapeControls(document string) string {
	var b strings.Builder
	for _, r := range document {
		if nameOfControl(r, string(r)) != "" { // all of them are below U+10000
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Writer passes text on after Visible. It may be used by several goroutines.
type Writer struct {
	mu  sync.Mutex
	out io.Writer
	cut []byte // the first bytes of a character, until the rest is written

	paint Painter // colours whole lines if it is not nil
	line  string  // the beginning of a line, until its end is written and it can be coloured
}

// NewWriter returns a writer that passes text on to out, without colours.
func NewWriter(out io.Writer) *Writer { return &Writer{out: out} }

// SetPainter makes the writer colour the lines that follow. It is called before the first write.
func (w *Writer) SetPainter(paint Painter) { w.paint = paint }

func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := string(w.cut) + string(p)
	end := len(text) - len(unfinished(text))
	w.cut = append(w.cut[:0], text[end:]...)
	if _, err := io.WriteString(w.out, w.painted(Visible(text[:end]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// painted colours the whole lines of visible text, and keeps the rest in w.line.
func (w *Writer) painted(text string) string {
	if w.paint == nil {
		return text
	}
	var b strings.Builder
	for {
		line, rest, whole := strings.Cut(text, "\n")
		if !whole {
			w.line += line
			return b.String()
		}
		b.WriteString(w.paint(w.line+line) + "\n")
		w.line, text = "", rest
	}
}

// Finish writes the text that still waits for the end of its line or character.
func (w *Writer) Finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if left := w.line + Visible(string(w.cut)); left != "" {
		_, _ = io.WriteString(w.out, left) // the program ends: the error cannot be reported
		w.line, w.cut = "", nil
	}
}

// unfinished returns the bytes of an incomplete character at the end of text.
func unfinished(text string) string {
	for i := len(text) - 1; i >= 0 && i >= len(text)-utf8.UTFMax; i-- {
		if !utf8.RuneStart(text[i]) {
			continue
		}
		if !utf8.FullRuneInString(text[i:]) {
			return text[i:]
		}
		break
	}
	return ""
}
