package volumes

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A container that can write to a volume must not redirect the agent, which writes there with the machine's rights, out
// of the volume.
func TestPayload_FollowsNoLinksOutOfItsVolume(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	volume, victim := filepath.Join(top, "volume"), filepath.Join(top, "victim")
	for _, dir := range []string{volume, victim} {
		require.NoError(t, os.Mkdir(dir, 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(victim, "precious"), []byte("content"), 0o600))
	one, two := payload{"dir/key": {[]byte("one"), 0o644}}, payload{"dir/key": {[]byte("two"), 0o644}}
	read := func() string {
		text, err := os.ReadFile(filepath.Join(volume, "dir", "key"))
		require.NoError(t, err)
		return string(text)
	}
	plant := func(name, to string) {
		t.Helper()
		require.NoError(t, os.RemoveAll(filepath.Join(volume, name)))
		require.NoError(t, os.Symlink(to, filepath.Join(volume, name)))
	}
	require.NoError(t, one.write(volume, nil))
	require.Equal(t, "one", read())
	first, err := os.Readlink(filepath.Join(volume, dataLink))
	require.NoError(t, err)
	require.NoError(t, one.write(volume, nil))
	again, err := os.Readlink(filepath.Join(volume, dataLink))
	require.NoError(t, err)
	require.Equal(t, first, again, "nothing has changed")
	require.NoError(t, two.write(volume, nil))
	require.Equal(t, "two", read())
	require.NoDirExists(t, filepath.Join(volume, first))

	for _, to := range []string{"../victim", victim, "..files-x/../../victim", "..files-x"} {
		plant("..files-x", "../victim")
		plant(dataLink, to)
		plant("..data_tmp", "../victim")
		for _, p := range []payload{one, two} {
			require.NoError(t, p.write(volume, nil), to)
			require.Equal(t, string(p["dir/key"].data), read())
		}
	}
	content, err := os.ReadFile(filepath.Join(victim, "precious"))
	require.NoError(t, err, "nothing outside is removed")
	require.Equal(t, "content", string(content))
	entries, err := os.ReadDir(victim)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing outside is written")
}

func TestPayload_ChangesAllFilesAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return string(text)
	}
	require.NoError(t, payload{"a": {[]byte("1"), 0o644}, "sub/b": {[]byte("2"), 0o400}}.write(dir, nil))
	require.Equal(t, "1", read("a"))
	require.Equal(t, "2", read("sub/b"))
	before, err := os.Readlink(filepath.Join(dir, dataLink))
	require.NoError(t, err)
	require.NoError(t, payload{"a": {[]byte("1"), 0o644}, "sub/b": {[]byte("2"), 0o400}}.write(dir, nil))
	same, err := os.Readlink(filepath.Join(dir, dataLink))
	require.NoError(t, err)
	require.Equal(t, before, same, "what has not changed is not written")

	require.NoError(t, payload{"a": {[]byte("3"), 0o644}, "c": {[]byte("4"), 0o644}}.write(dir, nil))
	require.Equal(t, "3", read("a"))
	require.Equal(t, "4", read("c"))
	require.NoFileExists(t, filepath.Join(dir, "sub"))
	require.NoDirExists(t, filepath.Join(dir, before))
	require.ErrorContains(t, payload{"../x": {nil, 0o644}}.write(dir, nil), "leads out of the volume")
}
