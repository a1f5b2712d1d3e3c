package audit

import (
	"slices"
	"strings"
	"testing"
)

// FuzzAuditLog: each line of a log is read once and whole, however the reads cut it.
func FuzzAuditLog(f *testing.F) {
	f.Add("a\nb\n\nc", uint8(1))
	f.Add("{\"kind\":\"Event\"}\r\n\x00\n", uint8(3))
	f.Add(strings.Repeat("x", 70_000)+"\ny\n", uint8(200))
	f.Fuzz(func(t *testing.T, text string, piece uint8) {
		var lines []string
		l := &auditLog{line: func(line []byte) error {
			lines = append(lines, string(line))
			return nil
		}}
		for rest := text; rest != ""; {
			n := min(len(rest), int(piece)+1)
			if err := l.continueLine(t.Context(), strings.NewReader(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		var whole []string
		for line := range strings.Lines(text) {
			if trimmed := strings.TrimSpace(line); trimmed != "" && strings.HasSuffix(line, "\n") {
				whole = append(whole, trimmed)
			}
		}
		if !slices.Equal(lines, whole) {
			t.Fatalf("%q of %q", lines, text)
		}
	})
}
