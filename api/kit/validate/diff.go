package validate

import (
	"bytes"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/util/diff"
)

const (
	// maxDiffLines limits the size of values that are compared line by line, in lines of JSON for both values
	// together. The time grows with its square, up to 50 ms.
	maxDiffLines = 1000
	// fewLines is the number of different lines that are shown for larger values.
	fewLines = 10
)

// Diff describes the difference between a value and an old one in the form of Kubernetes. For long values it shows
// only the first lines that differ.
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

// jsonLines returns the lines of a value's JSON, or nil if it cannot be encoded.
func jsonLines(value any) [][]byte {
	text, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return nil
	}
	return bytes.Split(text, []byte{'\n'})
}
