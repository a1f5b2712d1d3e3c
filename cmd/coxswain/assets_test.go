package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAssets_LinkToPrograms(t *testing.T) {
	t.Parallel()
	bin, dir := t.TempDir(), filepath.Join(t.TempDir(), "assets")
	program := filepath.Join(bin, "coxswain")
	require.NoError(t, os.WriteFile(program, []byte("server"), 0o755))
	require.ErrorContains(t, writeAssets(program, dir), "kubectl-lite")
	require.NoError(t, os.WriteFile(filepath.Join(bin, "kubectl-lite"), []byte("client"), 0o755))
	for range 2 { // the second time replaces the first links
		require.NoError(t, writeAssets(program, dir))
		for name, content := range map[string]string{"etcd": "server", "kube-apiserver": "server", "kubectl": "client"} {
			got, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.Equal(t, content, string(got), name)
		}
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 3)
}

func TestAssets_CopyPrograms(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, target := filepath.Join(dir, "program"), filepath.Join(dir, "copy")
	require.NoError(t, os.WriteFile(program, []byte("server"), 0o755))
	require.NoError(t, copyProgram(program, target))
	info, err := os.Stat(target)
	require.NoError(t, err)
	require.EqualValues(t, 0o755, info.Mode().Perm())
	require.EqualValues(t, len("server"), info.Size())
	require.Error(t, copyProgram(program, target), "existing files are not replaced")
}
