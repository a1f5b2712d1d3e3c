package validate

import (
	"bytes"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/util/diff"
)

const (
	// maxDiffLines is of how many lines two values may be, as JSON, that are compared line by line. The time for that
	// grows with the square of it, and is up to 50 ms.
	maxDiffLines = 1000
	// fewLines is how many lines that differ are shown of values that are longer.
	fewLines = 10
)

// Diff shows how a value differs from an old one, as Kubernetes does. Of long values only the first lines that differ
// are shown.
func Diff(old, is any) string {
	was, now := jsonLines(old), jsonLines(is)
	if len(was)+len(now) <= maxDiffLines {
		return diff.Diff(old, is)
	}
	same := 0
	for same < min(len(was), len(now)) && bytes.Equal(was[same], now[same]) {
		same++
	}
	var b strings.Builder
	show := func(sign string, lines [][]byte) {
		for _, line := range lines[:min(len(lines), fewLines)] {
			b.WriteString(sign)
			b.Write(line)
			b.WriteByte('\n')
		}
		if len(lines) > fewLines {
			b.WriteString(sign + "...\n")
		}
	}
	show("-", was[same:])
	show("+", now[same:])
	return b.String()
}

// jsonLines are the lines of a value as JSON; none if it has no JSON.
func jsonLines(value any) [][]byte {
	text, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return nil
	}
	return bytes.Split(text, []byte{'\n'})
}
