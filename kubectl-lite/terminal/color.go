package terminal

import (
	"regexp"
	"strings"
)

// Colours are added to lines that have been made visible, right before they are written (visibleWriter). Text from
// a server can therefore not bring its own, and output to anything but a terminal is unchanged.

// Painter colours lines, one after the other.
type Painter func(line string) string

const (
	Bold   = "1"
	Red    = "31"
	Green  = "32"
	Yellow = "33"
)

func Color(color, text string) string {
	if color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

var (
	tableHeader = regexp.MustCompile(`^(NAME|NAMESPACE|EVENT|LAST SEEN)(  |$)[A-Z0-9() /%-]*$`)
	headings    = regexp.MustCompile(`\S+( \S+)*`)
)

// PaintTable colours tables: the headings, and the cells that show health.
func PaintTable() Painter {
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
			return Color(Bold, line)
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
			b.WriteString(Color(color, cell))
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
			return Green
		case cell == "False", counted && have == "0" && want != "0":
			return Red
		case counted && have != want, cell == "Unknown":
			return Yellow
		}
	case "TYPE":
		if cell == "Warning" {
			return Yellow
		}
	case "STATUS":
		return colorOfStatus(cell)
	}
	return ""
}

func colorOfStatus(status string) string {
	switch status {
	case "Running", "Ready", "Active", "Bound", "Available", "Succeeded", "Completed", "Complete", "Approved,Issued":
		return Green
	case "Failed", "Evicted", "OOMKilled", "NotReady", "Lost", "Unknown", "ErrImagePull", "ErrImageNeverPull",
		"InvalidImageName":
		return Red
	case "Pending", "ContainerCreating", "PodInitializing", "Terminating", "Released", "Suspended",
		"Ready,SchedulingDisabled":
		return Yellow
	}
	switch {
	case strings.HasSuffix(status, "Error"), strings.HasSuffix(status, "BackOff"),
		strings.HasPrefix(status, "NotReady,"):
		return Red
	case strings.HasPrefix(status, "Init:"):
		return Yellow
	}
	return ""
}
