package controllertest

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/testenv"
)

// TestIdentity_UnauthorizedRequestFailsTheTest checks rightsTransport.
func TestIdentity_UnauthorizedRequestFailsTheTest(t *testing.T) {
	t.Parallel()
	var complaints complaints
	config := testenv.Start(t, testenv.APIServerOnly())
	refused := rest.CopyConfig(testenv.User(t, config, "system:serviceaccount:kube-system:ttl-controller"))
	refused.Wrap(func(next http.RoundTripper) http.RoundTripper { return &rightsTransport{&complaints, next} })
	client, err := rest.HTTPClientFor(refused)
	require.NoError(t, err)
	response, err := client.Get(config.Host + "/api/v1/secrets")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	client.CloseIdleConnections()
	require.Equal(t, complaints.n, 1)
}

// complaints counts the failures that a test would have had.
type complaints struct {
	testing.TB
	n int
}

func (c *complaints) Errorf(string, ...any) { c.n++ }
