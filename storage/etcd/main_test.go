package etcd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(startInEnv); dir != "" {
		os.Exit(startIn(dir))
	}
	leak.VerifyTestMain(m)
}

// startInEnv is the environment variable that makes the test program only start an etcd in a folder.
const startInEnv = "COXSWAIN_TEST_START_ETCD_IN"

func startIn(dir string) int {
	b, err := StartEmbedded(context.Background(), EmbeddedOptions{Dir: dir, Unsafe: true})
	if err == nil {
		err = b.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	return 0
}

// startElsewhere starts an etcd in its own process. It is for files that make etcd fail during the start and leave
// goroutines behind. It returns the output of a failed start, which must be an orderly exit.
func startElsewhere(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.CommandContext(testContext(t), os.Args[0])
	cmd.Env = append(os.Environ(), startInEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return ""
	}
	require.Equal(t, 1, cmd.ProcessState.ExitCode(), "%s", out)
	require.NotContains(t, string(out), "goroutine ", "a panic")
	return string(out)
}
