package controllertest

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/testenv"
)

// asThemselves gives each controller the identity and rights of its own account, as in a cluster. It returns
// the configuration for their shared requests. A request that RBAC rejects fails the test.
func (c *Cluster) asThemselves(o *controllers.Options) *rest.Config {
	identity, shared := c.identities()
	guarded := func(config *rest.Config) *rest.Config {
		config = rest.CopyConfig(config)
		if c.Wrap != nil {
			config.Wrap(c.Wrap)
		}
		config = c.Faults.Between(config)
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

// identities returns the identities of the controllers' accounts, and the one for shared requests. With
// Impersonate the administrator's identity impersonates them.
func (c *Cluster) identities() (identity func(account string) (*rest.Config, error), shared *rest.Config) {
	if !c.Impersonate {
		return testenv.ControllerIdentity(c.TB, c.Config),
			testenv.User(c.TB, c.Config, "system:kube-controller-manager")
	}
	impersonate := func(user string, groups ...string) *rest.Config {
		config := rest.CopyConfig(c.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
		return config
	}
	return func(account string) (*rest.Config, error) {
		return impersonate("system:serviceaccount:kube-system:"+account, "system:serviceaccounts",
			"system:serviceaccounts:kube-system"), nil
	}, impersonate("system:kube-controller-manager")
}

type rightsTransport struct {
	testing.TB
	next http.RoundTripper
}

// WrappedRoundTripper lets client-go find the transport below, to close its idle connections.
func (r *rightsTransport) WrappedRoundTripper() http.RoundTripper { return r.next }

// RoundTrip implements http.RoundTripper.
func (r *rightsTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err != nil || response.StatusCode != http.StatusForbidden {
		return response, err
	}
	// Admission rejects with the same code, so the message decides.
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(body))
	if message := string(body); strings.Contains(message, " cannot ") {
		r.Errorf("a controller has no right to %s %s: %s", request.Method, request.URL.Path, message)
	}
	return response, err
}

// NewSigning starts the named controllers with the keys of the control plane, on a simulated clock. The API
// server is always the test's own.
func NewSigning(t testing.TB, names ...string) *Clocked {
	c := NewIdle(t, names...)
	c.Restart()
	return c
}

// NewIdle is NewSigning without running controllers. The first Restart starts the named ones; their caches then
// begin with all objects that the test has created.
func NewIdle(t testing.TB, names ...string) *Clocked {
	if os.Getenv(testenv.ExternalVariable) != "" {
		t.Skipf("SKIPPED: not run against the server that %s names: the controllers sign with the control plane's "+
			"own keys", testenv.ExternalVariable)
	}
	config := testenv.Start(t, testenv.APIServerOnly())
	c := ClockedAt(t, config, names...)
	c.Settings = testenv.ControllerSettings(t, config)
	return c
}

// WhoIs returns the server's name for the user of a configuration.
func (c *Cluster) WhoIs(config *rest.Config) (string, error) {
	client, err := kubernetes.NewForConfig(config)
	require.NoError(c, err)
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(c.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}

// Bearing returns the configuration of a client with a token.
func (c *Cluster) Bearing(token string) *rest.Config {
	return &rest.Config{Host: c.Config.Host, BearerToken: token,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.Config.CAData}}
}
