package controllers_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/testenv"
)

// TestExternal_SaysWhichServerTheTestsRanAgainst: the others run against the server of COXSWAIN_TEST_KUBECONFIG
// where it names one.
func TestExternal_SaysWhichServerTheTestsRanAgainst(t *testing.T) {
	t.Parallel()
	kubeconfig := testenv.ExternalKubeconfig(t)
	version, err := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.OrExternal(), testenv.APIServerOnly())).Discovery().ServerVersion()
	require.NoError(t, err)
	t.Logf("%s is %s", kubeconfig, version.GitVersion)
}

// needsItsOwn skips, where there is another server, a test that needs one of its own.
func needsItsOwn(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(testenv.ExternalVariable) != "" {
		t.Skipf("not run against the server that %s names: %s", testenv.ExternalVariable, why)
	}
}
