package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A container that can write to a volume cannot lead the agent, which writes to it with the machine's rights, out of it.
func TestPayload_StaysInItsVolumeWhateverLinksAreThere(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	volume, victim := filepath.Join(top, "volume"), filepath.Join(top, "victim")
	for _, dir := range []string{volume, victim} {
		require.NoError(t, os.Mkdir(dir, 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(victim, "precious"), []byte("kept"), 0o600))
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
	kept, err := os.ReadFile(filepath.Join(victim, "precious"))
	require.NoError(t, err, "nothing outside is removed")
	require.Equal(t, "kept", string(kept))
	entries, err := os.ReadDir(victim)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing outside is written")
}
