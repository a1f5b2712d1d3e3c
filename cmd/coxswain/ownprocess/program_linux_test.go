package ownprocess

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMappingOf(t *testing.T) {
	t.Parallel()
	m, ok := mappingOf("00400000-02821000 r-xp 00000000 fe:00 1234567                            /usr/bin/cox swain")
	require.True(t, ok)
	require.Equal(t, mapping{from: 0x400000, to: 0x2821000, path: "/usr/bin/cox swain"}, m)
	m, ok = mappingOf("05417000-054dc000 rw-p 05017000 fe:00 1234567    /usr/bin/coxswain")
	require.True(t, ok)
	require.True(t, m.writable)
	for _, line := range []string{"Anonymous:             0 kB", "7fc498441000-7fc49875b000 rw-p 00000000 00:00 0 ",
		"VmFlags: rd ex mr mw me", ""} {
		_, ok := mappingOf(line)
		require.False(t, ok, line)
	}
}

// The process continues with fewer pages of the program in memory. The test is not parallel, since other tests would
// map pages.
func TestUnmapProgram_UnmapsPages(t *testing.T) {
	before := mappedFiles(t)
	unmapProgram()
	require.Less(t, mappedFiles(t), before)
}

// mappedFiles returns RssFile of proc_pid_status(5), in KiB.
func mappedFiles(t *testing.T) (kibibytes int) {
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(status), "\nRssFile:")
	require.True(t, found)
	_, err = fmt.Sscan(rest, &kibibytes)
	require.NoError(t, err)
	return kibibytes
}
