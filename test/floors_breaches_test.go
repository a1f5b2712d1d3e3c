package test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFloors_HoldInThisRepository(t *testing.T) {
	t.Parallel()
	found, err := breaches("..")
	require.NoError(t, err)
	require.Empty(t, found)
}

func TestFloors_FindEveryBreach(t *testing.T) {
	t.Parallel()
	const ours = `"github.com/coxswain-dev/coxswain/`
	for name, c := range map[string]struct {
		file, source string
		want         string // "" if the file is allowed
	}{
		"api knows no storage": {"api/a.go", `import _ ` + ours + `storage"`,
			"api/a.go:2: api may not import storage"},
		"storage knows no api": {"storage/a.go", `import _ ` + ours + `api/openapi"`,
			"storage/a.go:2: storage may not import api"},
		"storage knows no etcd": {"storage/a.go", `import _ "go.etcd.io/etcd/client/v3"`,
			"storage/a.go:2: go.etcd.io/etcd/client/v3: only storage/etcd imports etcd"},
		"its backend does": {"storage/etcd/a.go", `import _ "go.etcd.io/etcd/client/v3"`, ""},
		"a group is api's own": {"apiserver/a.go", `import _ ` + ours + `api/core"`,
			"apiserver/a.go:2: apiserver may not import api/core: it is api's own"},
		"groups stand on core alone": {"api/batch/a.go", `import _ ` + ours + `api/apps"`,
			"api/batch/a.go:2: api/batch may not import api/apps: of the groups, only core"},
		"groups stand on core": {"api/batch/a.go", `import _ ` + ours + `api/core"`, ""},
		"kinds are assembled above the server": {"apiserver/a.go", `import _ ` + ours + `api/builtin"`,
			"apiserver/a.go:2: apiserver may not import api/builtin: it is api's own"},
		"a server is put together of kinds": {"testenv/a.go", `import _ ` + ours + `api/builtin"`, ""},
		"packages for tests may test":       {"api/kindtest/a.go", `import _ "testing"`, ""},
		"packages for tests start servers":  {"controllers/lib/controllertest/a.go", `import _ ` + ours + `testenv"`, ""},
		"no shipped package imports one for tests": {"controllers/job/a.go",
			`import _ ` + ours + `controllers/lib/controllertest"`,
			"controllers/job/a.go:2: controllers/lib/controllertest: for tests only"},
		"tests import packages for tests": {"controllers/job/a_test.go",
			`import _ ` + ours + `controllers/lib/controllertest"`, ""},
		"api knows no apiserver": {"api/a.go", `import _ ` + ours + `apiserver"`,
			"api/a.go:2: api may not import apiserver"},
		"apiserver stands on both": {"apiserver/a.go", "import (\n_ " + ours + "api\"\n_ " + ours +
			"storage\"\n)", ""},
		"a room is given the objects": {"apiserver/pods/a.go", `import _ ` + ours + `storage"`,
			"apiserver/pods/a.go:2: apiserver/pods may not import storage: it is given the objects"},
		"a room below it may read them": {"apiserver/flowcontrol/config/a.go", `import _ ` + ours + `storage"`, ""},
		"apiserver runs no controllers": {"apiserver/a.go", `import _ ` + ours + `controllers"`,
			"apiserver/a.go:2: apiserver may not import controllers"},
		"controllers use HTTP": {"controllers/x/a.go", `import _ ` + ours + `storage"`,
			"controllers/x/a.go:2: controllers may not import storage"},
		"controllers know no scheduler": {"controllers/a.go", `import _ ` + ours + `scheduler"`,
			"controllers/a.go:2: controllers may not import scheduler"},
		"a floor imports itself":      {"controllers/a.go", `import _ ` + ours + `controllers/lib/controller"`, ""},
		"tests may start a server":    {"node/a_test.go", `import _ ` + ours + `testenv"`, ""},
		"tests may run other clients": {"node/a_test.go", `import _ ` + ours + `scheduler"`, ""},
		"tests of clients use HTTP": {"node/a_test.go", `import _ ` + ours + `apiserver"`,
			"node/a_test.go:2: node may not import apiserver"},
		"code may not start a server": {"node/a.go", `import _ ` + ours + `testenv"`,
			"node/a.go:2: node may not import testenv"},
		"the command line uses HTTP": {"kubectl-lite/a.go", `import _ ` + ours + `api"`,
			"kubectl-lite/a.go:2: kubectl-lite may not import api"},
		"no k8s.io/apiserver": {"apiserver/a.go", `import _ "k8s.io/apiserver/pkg/server"`,
			"apiserver/a.go:2: k8s.io/apiserver/pkg/server: imported nowhere in this project"},
		"no k8s.io/kubernetes in tests": {"test/a_test.go", `import _ "k8s.io/kubernetes"`,
			"test/a_test.go:2: k8s.io/kubernetes: imported nowhere in this project"},
		"k8s.io/api is not its server": {"api/a.go", `import _ "k8s.io/api/core/v1"`, ""},
		"controller-runtime in tests":  {"testenv/a_test.go", `import _ "sigs.k8s.io/controller-runtime"`, ""},
		"controller-runtime in code": {"controllers/a.go", `import _ "sigs.k8s.io/controller-runtime/pkg/client"`,
			"controllers/a.go:2: sigs.k8s.io/controller-runtime/pkg/client: for tests only"},
		"a folder without a place": {"utils/a.go", ``,
			"utils/a.go: the folder utils has no place among the floors"},
		"the wall clock, read": {"controllers/a.go", "import \"time\"\nvar _ = time.Now()",
			"controllers/a.go:3: time.Now: take the time from a clock.Clock"},
		"the wall clock, by other names": {"node/a.go", "import t \"time\"\nvar _ = t.After(1)",
			"node/a.go:3: time.After: take the time from a clock.Clock"},
		"the wall clock, passed on": {"scheduler/a.go", "import \"time\"\nvar now = time.Now",
			"scheduler/a.go:3: time.Now: take the time from a clock.Clock"},
		"the wall clock in tests":  {"node/a_test.go", "import \"time\"\nvar _ = time.Now()", ""},
		"the wall clock for tests": {"controllers/xtest/a.go", "import \"time\"\nvar _ = time.Now()", ""},
		"the wall clock elsewhere": {"apiserver/a.go", "import \"time\"\nvar _ = time.Now()", ""},
		"durations":                {"node/a.go", "import \"time\"\nvar _ = time.Second", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			path := filepath.Join(root, c.file)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte("package p\n"+c.source+"\n"), 0o644))
			found, err := breaches(root)
			require.NoError(t, err)
			if c.want == "" {
				require.Empty(t, found)
			} else {
				require.Equal(t, []string{c.want}, found)
			}
		})
	}
}
