package terminal

import (
	"encoding/json"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
)

func TestVisible_ReplacesControlCharacters(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain\ttext\n":              "plain\ttext\n",
		"Grüße, 世界 🙂 שלום":           "Grüße, 世界 🙂 שלום",
		"\x1b]0;title\x07":           "^[]0;title^G",
		"over\rwritten\x08\x00\x7f":  `over\rwritten^H^@^?`,
		"\u009b31m \u0085":           `\u009b31m \u0085`,
		"\x9b31m \xc2":               `\x9b31m \xc2`,
		"\u202egnp.exe\u2069\u2028x": `\u202egnp.exe\u2069\u2028x`,
		"\ufffd":                     "\ufffd",
	} {
		require.Equal(t, want, Visible(text))
		clitest.RequireVisible(t, Visible(text))
	}
	require.Equal(t, `a\nb\tc^[`, OneLine("a\nb\tc\x1b"))
}

// TestWriter_AcceptsTextInPieces writes byte by byte, and expects the output of a single write.
func TestWriter_AcceptsTextInPieces(t *testing.T) {
	t.Parallel()
	for _, text := range []string{clitest.HostileText, "Grüße, 世界 🙂", "\xe4\xb8", "\xc2\x9b\xf0\x9f\x99", "\xff\xfe\x80\x9b"} {
		out := &clitest.Buffer{}
		w := NewWriter(out)
		for i := range len(text) {
			n, err := w.Write([]byte{text[i]})
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
		w.Finish()
		require.Equal(t, Visible(text), out.String())
	}
	_, err := NewWriter(iotest.TruncateWriter(nil, 0)).Write(nil)
	require.NoError(t, err)
}

// The document has the same meaning, and no character in it controls a terminal.
func TestEscapeControls_KeepsTheMeaningOfJSON(t *testing.T) {
	t.Parallel()
	const text = "\x1b]0;owned\a \u009b2J \u202e \x7f ä\n"
	document, err := json.Marshal(text)
	require.NoError(t, err)
	escaped := EscapeControls(string(document))
	clitest.RequireVisible(t, escaped)
	var read string
	require.NoError(t, json.Unmarshal([]byte(escaped), &read))
	require.Equal(t, text, read)
}
