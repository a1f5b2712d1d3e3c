package terminal

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Age is the age of something, as tables show it.
func Age(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t))
}

func Cut(line string, width int) string {
	line = strings.TrimRight(line, " ")
	runes := []rune(line)
	if len(runes) <= width {
		return line
	}
	return string(runes[:width])
}
