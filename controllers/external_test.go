package controllers_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/testenv"
)

// TestExternal_LogsTheServer logs the server of COXSWAIN_TEST_KUBECONFIG, if the tests run against one.
func TestExternal_LogsTheServer(t *testing.T) {
	t.Parallel()
	kubeconfig := testenv.ExternalKubeconfig(t)
	version, err := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.OrExternal(),
		testenv.APIServerOnly())).Discovery().ServerVersion()
	require.NoError(t, err)
	t.Logf("%s is %s", kubeconfig, version.GitVersion)
}
