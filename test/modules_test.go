package test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// required is a line of a go.mod that names a module and its version.
var required = regexp.MustCompile(`(?m)^(?:require)?\s+(\S+\.\S+) (v\d\S+)`)

// TestModules_ShareVersions requires that nested modules have the same versions of common dependencies. Go then
// compiles Kubernetes' libraries once for all of them, and tests run against the code that ships. The modules of
// test/compat are left out: they test an older release.
func TestModules_ShareVersions(t *testing.T) {
	t.Parallel()
	files := []string{"../go.mod"}
	for _, pattern := range []string{"*/go.mod", "../tools/*/go.mod", "../examples/*/go.mod"} {
		more, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, more...)
	}
	require.Greater(t, len(files), 5)
	versions := map[string]map[string]string{} // by module: each version, and a file with it
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range required.FindAllStringSubmatch(string(text), -1) {
			if versions[m[1]] == nil {
				versions[m[1]] = map[string]string{}
			}
			versions[m[1]][m[2]] = file
		}
	}
	require.Greater(t, len(versions), 150)
	for module, found := range versions {
		if len(found) > 1 {
			t.Errorf("%s is required in several versions: %v", module, found)
		}
	}
}
