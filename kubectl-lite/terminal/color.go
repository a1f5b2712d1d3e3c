package terminal

import (
	"regexp"
	"strings"
)

// A Writer adds colours after it has made a line visible, right before it writes it. Therefore text from a server
// cannot bring its own colours, and output to anything other than a terminal is unchanged.

// Painter colours the lines of an output. It is called with one after the other and may keep state between them.
type Painter func(line string) string

// Parameters of the control sequence SGR (ECMA-48) for Color. Several are separated by ";".
const (
	Bold   = "1"
	Red    = "31"
	Green  = "32"
	Yellow = "33"
)

// Color returns text in a colour, or unchanged if the colour is "".
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
		name       string
		start, end int // in characters; the last column's end is 0
	}
	var columns []column
	betweenTables := true
	return func(line string) string {
		if line == "" {
			columns, betweenTables = nil, true
			return line
		}
		if betweenTables {
			betweenTables = false
			if !tableHeader.MatchString(line) {
				return line
			}
			for _, span := range headings.FindAllStringIndex(line, -1) { // headings are ASCII
				if n := len(columns); n > 0 {
					columns[n-1].end = span[0]
				}
				columns = append(columns, column{name: line[span[0]:span[1]], start: span[0]})
			}
			return Color(Bold, line)
		}
		runes := []rune(line)
		var b strings.Builder
		done := 0
		for _, c := range columns {
			end := c.end
			if end == 0 || end > len(runes) {
				end = len(runes)
			}
			if c.start == 0 || c.start >= end || runes[c.start-1] != ' ' { // an earlier cell is wider than its column
				continue
			}
			cell := strings.TrimRight(string(runes[c.start:end]), " ")
			color := colorOf(c.name, cell)
			if color == "" {
				continue
			}
			b.WriteString(string(runes[done:c.start]))
			b.WriteString(Color(color, cell))
			done = c.start + len([]rune(cell))
		}
		b.WriteString(string(runes[done:]))
		return b.String()
	}
}

// colorOf returns the colour of a cell by the heading of its column, or "".
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
