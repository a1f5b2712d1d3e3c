package kubectllite

import (
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"
)

// Colours are added to lines that have been made visible, right before they are written (visibleWriter). Text from
// a server can therefore not bring its own, and output to anything but a terminal is unchanged.

// painter colours lines, one after the other.
type painter func(line string) string

const (
	sgrBold   = "1"
	sgrRed    = "31"
	sgrGreen  = "32"
	sgrYellow = "33"
)

func in(color, text string) string {
	if color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// colored adds the flag --color to a command, and a painter to its output for people.
func (s *session) colored(cmd *cobra.Command, begin func() painter) *cobra.Command {
	mode := cmd.Flags().String("color", "auto", "Colour what is printed for people. One of: (auto, always, "+
		"never). auto does so on a terminal, unless NO_COLOR is set.")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch *mode {
		case "auto":
			if printers.AllowsColorOutput(s.verbatim.Out) && os.Getenv("TERM") != "dumb" {
				s.paint(begin)
			}
		case "always":
			s.paint(begin)
		case "never":
		default:
			return usageErrorf(cmd, "--color must be 'auto', 'always' or 'never'")
		}
		return run(cmd, args)
	}
	return cmd
}

func (s *session) paint(begin func() painter) {
	s.painter = begin
	if out, ok := s.Out.(*visibleWriter); ok {
		out.paint = begin()
	}
}

// painted is a whole picture in colours.
func (s *session) painted(lines []string) []string {
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

var (
	tableHeader = regexp.MustCompile(`^(NAME|NAMESPACE|EVENT|LAST SEEN)(  |$)[A-Z0-9() /%-]*$`)
	headings    = regexp.MustCompile(`\S+( \S+)*`)
)

// paintTable colours tables: the headings, and the cells that show health.
func paintTable() painter {
	type column struct {
		name     string
		from, to int // in characters; the last column's to is 0
	}
	var columns []column
	between := true // two tables
	return func(line string) string {
		if line == "" {
			columns, between = nil, true
			return line
		}
		if between {
			between = false
			if !tableHeader.MatchString(line) {
				return line
			}
			for _, at := range headings.FindAllStringIndex(line, -1) { // headings are ASCII
				if n := len(columns); n > 0 {
					columns[n-1].to = at[0]
				}
				columns = append(columns, column{name: line[at[0]:at[1]], from: at[0]})
			}
			return in(sgrBold, line)
		}
		runes := []rune(line)
		var b strings.Builder
		done := 0
		for _, c := range columns {
			end := c.to
			if end == 0 || end > len(runes) {
				end = len(runes)
			}
			if c.from == 0 || c.from >= end || runes[c.from-1] != ' ' { // a row that is wider than its headings
				continue
			}
			cell := strings.TrimRight(string(runes[c.from:end]), " ")
			color := colorOf(c.name, cell)
			if color == "" {
				continue
			}
			b.WriteString(string(runes[done:c.from]))
			b.WriteString(in(color, cell))
			done = c.from + len([]rune(cell))
		}
		b.WriteString(string(runes[done:]))
		return b.String()
	}
}

// colorOf is the colour of a cell, by its column.
func colorOf(column, cell string) string {
	switch column {
	case "READY", "COMPLETIONS":
		have, want, counted := strings.Cut(cell, "/")
		switch {
		case cell == "True", counted && have == want && want != "0":
			return sgrGreen
		case cell == "False", counted && have == "0" && want != "0":
			return sgrRed
		case counted && have != want, cell == "Unknown":
			return sgrYellow
		}
	case "TYPE":
		if cell == "Warning" {
			return sgrYellow
		}
	case "STATUS":
		return colorOfStatus(cell)
	}
	return ""
}

func colorOfStatus(status string) string {
	switch status {
	case "Running", "Ready", "Active", "Bound", "Available", "Succeeded", "Completed", "Complete", "Approved,Issued":
		return sgrGreen
	case "Failed", "Evicted", "OOMKilled", "NotReady", "Lost", "Unknown", "ErrImagePull", "ErrImageNeverPull",
		"InvalidImageName":
		return sgrRed
	case "Pending", "ContainerCreating", "PodInitializing", "Terminating", "Released", "Suspended",
		"Ready,SchedulingDisabled":
		return sgrYellow
	}
	switch {
	case strings.HasSuffix(status, "Error"), strings.HasSuffix(status, "BackOff"),
		strings.HasPrefix(status, "NotReady,"):
		return sgrRed
	case strings.HasPrefix(status, "Init:"):
		return sgrYellow
	}
	return ""
}

// paintWhy colours the answer, and the likely cause.
func paintWhy() painter {
	cause := false
	return func(line string) string {
		if cause {
			cause = false
			return in(sgrRed, line)
		}
		switch {
		case strings.HasPrefix(line, " "):
		case strings.HasSuffix(line, " is ready."), strings.HasPrefix(line, "Nothing is wrong "):
			return in(sgrGreen, line)
		case strings.HasSuffix(line, " is not as it should be."), strings.Contains(line, " is not ready ("),
			strings.Contains(line, " wrong in "):
			return in(sgrBold+";"+sgrRed, line)
		case strings.HasSuffix(line, ":"):
			cause = line == "Likely cause:"
			return in(sgrBold, line)
		}
		return line
	}
}

// paintTimeline colours revisions and what changed in them.
func paintTimeline() painter {
	return func(line string) string {
		switch {
		case strings.HasPrefix(line, "revision "):
			return in(sgrBold, line)
		case strings.HasPrefix(line, "  + "):
			return in(sgrGreen, line)
		case strings.HasPrefix(line, "  - "):
			return in(sgrRed, line)
		case strings.HasPrefix(line, "  ~ "):
			return in(sgrYellow, line)
		}
		return line
	}
}
