package terminal

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Age returns the time since t as tables show it.
func Age(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t))
}

// Cut returns the first width characters of a line, without trailing spaces.
func Cut(line string, width int) string {
	line = strings.TrimRight(line, " ")
	runes := []rune(line)
	if len(runes) <= width {
		return line
	}
	return string(runes[:width])
}
