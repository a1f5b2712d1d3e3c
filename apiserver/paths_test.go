package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/discovery"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
)

func TestPaths_ServeRootVersionAndHealth(t *testing.T) {
	t.Parallel()
	s := start(t)
	require.Subset(t, s.get("/").ok(http.StatusOK).at("paths"), []any{"/api", "/api/v1", "/apis", "/apis/apps",
		"/apis/apps/v1", "/version"})
	client, err := discovery.NewDiscoveryClientForConfigAndClient(s.config, s.http)
	require.NoError(t, err)
	v, err := client.ServerVersion()
	require.NoError(t, err)
	require.Equal(t, kubeversion.MajorMinor, v.Major+"."+v.Minor)
	for _, path := range []string{"/livez?verbose", "/readyz?verbose", "/healthz?verbose"} {
		text := string(s.get(path).ok(http.StatusOK).body)
		require.Contains(t, text, "[+]ping ok\n")
		require.Contains(t, text, "check passed\n")
	}
	s.get("/readyz/nothing").ok(http.StatusNotFound)
}
