package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha512"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

func newRelease(t *testing.T) *release {
	t.Helper()
	return &release{version: "v1.0.0", kubernetes: "v1.2.3", time: time.Unix(1_700_000_000, 0), out: t.TempDir(),
		url: "https://example.org/releases/"}
}

func TestArchive_IsReproducible(t *testing.T) {
	t.Parallel()
	a, b := newRelease(t), newRelease(t)
	var archives [][]byte
	for i, r := range []*release{a, b} {
		file := filepath.Join(t.TempDir(), "program")
		require.NoError(t, os.WriteFile(file, []byte("program"), 0o700))
		made := time.Unix(int64(i), 0)
		require.NoError(t, os.Chtimes(file, made, made))
		require.NoError(t, r.archive("a.tar.gz", []member{{"controller-tools/envtest/etcd", file, 0o755}}))
		content, err := os.ReadFile(filepath.Join(r.out, "a.tar.gz"))
		require.NoError(t, err)
		archives = append(archives, content)
	}
	require.Equal(t, archives[0], archives[1])

	in, err := os.Open(filepath.Join(a.out, "a.tar.gz"))
	require.NoError(t, err)
	defer in.Close()
	unzipped, err := gzip.NewReader(in)
	require.NoError(t, err)
	tape := tar.NewReader(unzipped)
	header, err := tape.Next()
	require.NoError(t, err)
	require.Equal(t, "controller-tools/envtest/etcd", header.Name)
	require.EqualValues(t, tar.TypeReg, header.Typeflag, "setup-envtest ignores other types")
	require.EqualValues(t, 0o755, header.Mode)
	content, err := io.ReadAll(tape)
	require.NoError(t, err)
	require.Equal(t, "program", string(content))
	_, err = tape.Next()
	require.True(t, errors.Is(err, io.EOF))
}

func TestSum_WritesTheIndexOfSetupEnvtest(t *testing.T) {
	t.Parallel()
	r := newRelease(t)
	name := r.assets(platform{"linux", "amd64"})
	require.Equal(t, "envtest-v1.2.3-linux-amd64.tar.gz", name)
	archive := filepath.Join(r.out, name)
	require.NoError(t, os.WriteFile(archive, []byte("archive"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(r.out, "coxswain-v1.0.0-linux-amd64.tar.gz"), []byte("other"), 0o600))
	require.NoError(t, r.sum())
	text, err := os.ReadFile(filepath.Join(r.out, "envtest-releases.yaml"))
	require.NoError(t, err)
	var index struct {
		Releases map[string]map[string]struct{ Hash, SelfLink string }
	}
	require.NoError(t, yaml.UnmarshalStrict(text, &index))
	digest, err := digestOf(archive, sha512.New())
	require.NoError(t, err)
	require.Len(t, index.Releases["v1.2.3"], 1)
	require.Equal(t, digest, index.Releases["v1.2.3"][name].Hash)
	require.Equal(t, "https://example.org/releases/"+name, index.Releases["v1.2.3"][name].SelfLink)
	sums, err := os.ReadFile(filepath.Join(r.out, "SHA512SUMS"))
	require.NoError(t, err)
	require.Contains(t, string(sums), digest+"  "+name+"\n")
	require.Contains(t, string(sums), "  envtest-releases.yaml\n")
}

func TestBill_ListsModulesOfPrograms(t *testing.T) {
	t.Parallel()
	const sum = "h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=" // of an empty file
	modules := map[string]component{}
	for range 2 { // two programs with the same modules
		require.NoError(t, addLinked(&debug.BuildInfo{GoVersion: "go1.26.8", Deps: []*debug.Module{
			{Path: "example.org/a", Version: "v1.2.3", Sum: sum},
			{Path: "example.org/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/fork", Version: "v1.0.1"}},
		}}, modules))
	}
	require.Equal(t, map[string]component{
		"pkg:golang/std@1.26.8": {Type: "library", Ref: "pkg:golang/std@1.26.8", Name: "std", Version: "1.26.8",
			URL: "pkg:golang/std@1.26.8"},
		"pkg:golang/example.org/a@v1.2.3": {Type: "library", Ref: "pkg:golang/example.org/a@v1.2.3",
			Name: "example.org/a", Version: "v1.2.3", URL: "pkg:golang/example.org/a@v1.2.3",
			Hashes: []digest{{"SHA-256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}},
		"pkg:golang/example.org/fork@v1.0.1": {Type: "library", Ref: "pkg:golang/example.org/fork@v1.0.1",
			Name: "example.org/fork", Version: "v1.0.1", URL: "pkg:golang/example.org/fork@v1.0.1"},
	}, modules)
}
