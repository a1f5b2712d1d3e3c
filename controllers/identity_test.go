package controllers_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/testenv"
)

// asThemselves lets controllers act as they do in a cluster: each with the rights of its own account and no others.
// It returns the configuration for what they share. A request that RBAC refuses fails the test.
func (c *cluster) asThemselves(o *controllers.Options) *rest.Config {
	identity, shared := c.identities()
	guarded := func(config *rest.Config) *rest.Config {
		if c.faults != nil {
			config = c.between(config)
		}
		config = rest.CopyConfig(config)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &rightsTransport{c.TB, next} })
		return config
	}
	o.As = func(account string) (*rest.Config, error) {
		config, err := identity(account)
		if err != nil {
			return nil, err
		}
		return guarded(config), nil
	}
	return guarded(shared)
}

// identities are those of the controllers' accounts, and the one for what they share. A server that stands before the
// API server asks it as the administrator, who impersonates them.
func (c *cluster) identities() (of func(account string) (*rest.Config, error), shared *rest.Config) {
	if !c.behind {
		return testenv.ControllerIdentity(c.TB, c.config), testenv.User(c.TB, c.config, "system:kube-controller-manager")
	}
	as := func(user string, groups ...string) *rest.Config {
		config := rest.CopyConfig(c.config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
		return config
	}
	return func(account string) (*rest.Config, error) {
		return as("system:serviceaccount:kube-system:"+account, "system:serviceaccounts", "system:serviceaccounts:kube-system"), nil
	}, as("system:kube-controller-manager")
}

type rightsTransport struct {
	testing.TB
	next http.RoundTripper
}

// WrappedRoundTripper lets whoever closes connections find them.
func (r *rightsTransport) WrappedRoundTripper() http.RoundTripper { return r.next }

// RoundTrip implements http.RoundTripper.
func (r *rightsTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err != nil || response.StatusCode != http.StatusForbidden {
		return response, err
	}
	// Admission refuses with the same code.
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(body))
	if said := string(body); strings.Contains(said, " cannot ") {
		r.Errorf("a controller has no right to %s %s: %s", request.Method, request.URL.Path, said)
	}
	return response, err
}

// TestIdentity_ARequestWithoutARightFailsTheTest checks the checker.
func TestIdentity_ARequestWithoutARightFailsTheTest(t *testing.T) {
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

// complaints counts what a test would have failed by.
type complaints struct {
	testing.TB
	n int
}

func (c *complaints) Errorf(string, ...any) { c.n++ }
