package terminal

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWriter_ColorsVisibleText(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		paint        Painter
		plain, wants string
	}{
		"pods": {PaintTable(),
			"NAME   READY   STATUS    RESTARTS   AGE\nRunning   1/1     Running   0          1s\nb      0/1     " +
				"Pending   0          1s\nc      1/2     Error     0          1s\nä\x1b[31m      1/2     Error    " +
				" 0          1s\n",
			"\x1b[1mNAME   READY   STATUS    RESTARTS   AGE\x1b[0m\nRunning   1/1     Running   0          1s\n" +
				"b      \x1b[31m0/1\x1b[0m     \x1b[33mPending\x1b[0m   0          1s\nc      \x1b[33m1/2\x1b[0m  " +
				"   \x1b[31mError\x1b[0m     0          1s\nä^[[31m      1/2     Error     0          1s\n"},
		"two tables": {PaintTable(),
			"NAME    STATUS   ROLES\nnode    Ready    <none>\n\nNAME    STATUS\nclaim   Lost\n\nplain text\nclaim " +
				"  Lost\n",
			"\x1b[1mNAME    STATUS   ROLES\x1b[0m\nnode    \x1b[32mReady\x1b[0m    <none>\n\n\x1b[1mNAME    " +
				"STATUS\x1b[0m\nclaim   \x1b[31mLost\x1b[0m\n\nplain text\nclaim   Lost\n"},
		"tree": {PaintTable(),
			"NAME         READY   STATUS    AGE\nDeploy/web   1/1     -         1s\n└─Pod/web    1/1     Running   1s\n",
			"\x1b[1mNAME         READY   STATUS    AGE\x1b[0m\nDeploy/web   \x1b[32m1/1\x1b[0m     -         " +
				"1s\n└─Pod/web    \x1b[32m1/1\x1b[0m     \x1b[32mRunning\x1b[0m   1s\n"},
		"a line without an end": {PaintTable(), "NAME   READY", "NAME   READY"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			w := NewWriter(&out)
			w.SetPainter(c.paint)
			for i := range len(c.plain) { // however it is cut
				n, err := w.Write([]byte(c.plain[i : i+1]))
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
			w.Finish()
			require.Equal(t, c.wants, out.String())
			require.Equal(t, Visible(c.plain), regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(out.String(), ""),
				"only colours are added")
		})
	}
}
