package ownprocess

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOOMScore_IsOnlyLowered(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "oom_score_adj")
	for _, c := range []struct{ current, want string }{{"0\n", "-999"}, {"1000\n", "-999"}, {"-1000\n", "-1000\n"},
		{"-999\n", "-999\n"}, {"invalid", "invalid"}} {
		require.NoError(t, os.WriteFile(path, []byte(c.current), 0o600))
		writeOOMScore(path, AgentOOMScore)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, c.want, string(text))
	}
	require.Less(t, AgentOOMScore, APIServerOOMScore)
}
