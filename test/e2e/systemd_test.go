//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const systemdUnits = "../../deploy/systemd"

// TestSystemd_UnitsAreValid makes systemd read the units, as installed on one machine and on each of three.
func TestSystemd_UnitsAreValid(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("SKIPPED: systemd-analyze is not installed here")
	}
	version, err := exec.CommandContext(t.Context(), analyze, "--version").Output()
	require.NoError(t, err)
	if number, err := strconv.Atoi(strings.Fields(string(version))[1]); err != nil || number < 250 {
		t.Skipf("SKIPPED: systemd-analyze verify has no --root here: %s", version)
	}
	for name, dropIns := range map[string]bool{"one machine": false, "three machines": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for _, program := range []string{"bin/sh", "bin/true", "usr/local/bin/coxswain"} {
				place(t, filepath.Join(root, program), nil, 0o755)
			}
			for _, target := range []string{"sysinit", "basic", "shutdown", "network-online", "multi-user"} {
				place(t, filepath.Join(root, "etc/systemd/system", target+".target"), []byte("[Unit]\n"), 0o644)
			}
			var units []string
			for _, file := range unitFiles(t) {
				path, err := filepath.Rel(systemdUnits, file)
				require.NoError(t, err)
				if dropIns || filepath.Dir(path) == "." {
					content, err := os.ReadFile(file)
					require.NoError(t, err)
					place(t, filepath.Join(root, "etc/systemd/system", path), content, 0o644)
				}
				if filepath.Dir(path) == "." && !strings.Contains(path, "@") {
					units = append(units, path)
				}
			}
			units = append(units, "coxswain@controllers.service", "coxswain@scheduler.service", "coxswain@node.service")
			out, err := exec.CommandContext(t.Context(), analyze, append([]string{"verify", "--man=no", "--root=" + root},
				units...)...).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Empty(t, string(out))
		})
	}
}

var (
	unitCommand = regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/coxswain (\S+) (.*)$`)
	unitFlag    = regexp.MustCompile(`--[a-z0-9-]+`)
)

// TestSystemd_FlagsAreKnown checks the flags of each command line in the units.
func TestSystemd_FlagsAreKnown(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, file := range unitFiles(t) {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, command := range unitCommand.FindAllStringSubmatch(strings.ReplaceAll(string(content), "\\\n", " "), -1) {
			parts := []string{command[1]}
			if command[1] == "%i" {
				parts = []string{"controllers", "scheduler", "node"}
				if _, part, named := strings.Cut(filepath.Base(filepath.Dir(file)), "@"); named {
					parts = []string{strings.TrimSuffix(part, ".service.d")}
				}
			}
			for _, part := range parts {
				help, err := exec.CommandContext(t.Context(), coxswain, part, "--help").CombinedOutput()
				require.NoError(t, err, "%s", help)
				flags := unitFlag.FindAllString(string(help), -1)
				for _, flag := range unitFlag.FindAllString(command[2], -1) {
					require.Contains(t, flags, flag, "%s: coxswain %s", file, part)
					seen++
				}
			}
		}
	}
	require.Greater(t, seen, 50)
}

// unitFiles returns the units and their drop-ins.
func unitFiles(t *testing.T) []string {
	t.Helper()
	units, err := filepath.Glob(systemdUnits + "/*.service")
	require.NoError(t, err)
	dropIns, err := filepath.Glob(systemdUnits + "/*.service.d/*.conf")
	require.NoError(t, err)
	require.NotEmpty(t, units)
	require.NotEmpty(t, dropIns)
	return append(units, dropIns...)
}

func place(t *testing.T, path string, content []byte, mode os.FileMode) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, content, mode))
}
