package sites_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/coxswain-dev/coxswain/testenv"
)

// startCluster starts a control plane with the definitions of a file, and returns the address that it calls the
// operator's webhooks at. The control plane runs in the test's process or, if KUBEBUILDER_ASSETS names the programs of
// `coxswain assets`, in processes that envtest starts.
func startCluster(t *testing.T, definitions string) (*rest.Config, *testenv.WebhookServer) {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		env := testenv.StartEnvironment(t, testenv.WithCRDs(definitions), testenv.WithWebhooks())
		return env.Config, env.Webhooks
	}
	env := envtest.Environment{CRDDirectoryPaths: []string{definitions}, ErrorIfCRDPathMissing: true}
	config, err := env.Start()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, env.Stop()) })
	hooks := &env.WebhookInstallOptions
	return config, &testenv.WebhookServer{Host: hooks.LocalServingHost, Port: hooks.LocalServingPort,
		CertDir: hooks.LocalServingCertDir, CAData: hooks.LocalServingCAData}
}
