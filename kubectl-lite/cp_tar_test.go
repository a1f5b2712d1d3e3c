package kubectllite

import (
	"archive/tar"
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func TestCopy_ArchivesOfOthersStayInTheTarget(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	target := filepath.Join(folder, "target")
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(header tar.Header, content string) {
		header.Size, header.Mode = int64(len(content)), 0o4777
		require.NoError(t, w.WriteHeader(&header))
		_, err := w.Write([]byte(content))
		require.NoError(t, err)
	}
	add(tar.Header{Typeflag: tar.TypeDir, Name: "src/"}, "")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "src/fine"}, "fine")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "/src/absolute"}, "below")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "src/../../outside"}, "x")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "src/a/../../../outside"}, "x")
	add(tar.Header{Typeflag: tar.TypeSymlink, Name: "src/link", Linkname: folder}, "")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "src/link/outside"}, "x")
	add(tar.Header{Typeflag: tar.TypeLink, Name: "src/hard", Linkname: "/etc/passwd"}, "")
	add(tar.Header{Typeflag: tar.TypeLink, Name: "src/fine", Linkname: "src/other"}, "")
	add(tar.Header{Typeflag: tar.TypeChar, Name: "src/null", Devmajor: 1, Devminor: 3}, "")
	add(tar.Header{Typeflag: tar.TypeFifo, Name: "src/pipe"}, "")
	add(tar.Header{Typeflag: tar.TypeFifo, Name: "src/" + "\x1b]0;owned\x07"}, "")
	require.NoError(t, w.Close())

	errOut := &lockedBuffer{}
	o := &copyOptions{session: newSession(genericiooptions.IOStreams{Out: &lockedBuffer{}, ErrOut: errOut})}
	require.NoError(t, o.unpackTar(&archive, "src", target, func(string, string) {}))
	entries, err := os.ReadDir(target)
	require.NoError(t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	require.Equal(t, []string{"absolute", "fine", "link"}, names)
	require.Equal(t, "fine", readFile(t, target, "fine"), "a hard link leaves what is there")
	require.Equal(t, "x", readFile(t, target, "link", "outside"), "a folder in the place of the link")
	require.NoFileExists(t, filepath.Join(folder, "outside"))
	info, err := os.Stat(filepath.Join(target, "fine"))
	require.NoError(t, err)
	require.Zero(t, info.Mode()&(os.ModeSetuid|0o022), "modes are this user's")
	requireVisible(t, errOut.String())
}

func TestClusterInfoDump_NamesOfPodsAreNoPaths(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	f.objects["/api/v1/namespaces/default/pods/x"] = map[string]any{"kind": "Pod", "apiVersion": "v1", "metadata": map[string]any{"name": "../../../outside", "namespace": "default"}}
	f.streams = func(w http.ResponseWriter, r *http.Request) bool {
		_, _, known := locate(r.URL.Path)
		if known || f.discovery(r.URL.Path) != nil {
			return false
		}
		respond(w, http.StatusOK, map[string]any{"items": []any{}})
		return true
	}
	folder := t.TempDir()
	got := f.run(t, "", "cluster-info", "dump", "--namespaces=default", "--output-directory="+filepath.Join(folder, "a", "b"))
	require.NoDirExists(t, filepath.Join(folder, "outside"))
	require.Equal(t, outcome{1, "", "error: the server has a pod of the name \"../../../outside\", which cannot be the name of a folder\n"}, got)
}
