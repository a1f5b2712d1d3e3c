package why

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPaintWhy_ColorsTheAnswerAndTheCause(t *testing.T) {
	t.Parallel()
	const plain = "Pod/a is not ready (0/1).\n\nLikely cause:\n  Pod/a waits\n\nAlso:\n  more\n"
	paint := paintWhy()
	var colored []string
	for _, line := range strings.Split(plain, "\n") {
		colored = append(colored, paint(line))
	}
	require.Equal(t, "\x1b[1;31mPod/a is not ready (0/1).\x1b[0m\n\n\x1b[1mLikely cause:\x1b[0m\n\x1b[31m  Pod/a "+
		"waits\x1b[0m\n\n\x1b[1mAlso:\x1b[0m\n  more\n", strings.Join(colored, "\n"))
}
