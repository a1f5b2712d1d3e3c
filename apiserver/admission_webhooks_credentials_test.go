package apiserver_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/testenv"
)

const hookKubeconfig = `{"apiVersion":"v1","kind":"Config","users":[{"name":"example.com","user":{"token":"never"}},
{"name":"*","user":{"token":"for-the-hook"}}]}`

// webhookConfig returns the configuration of a webhook plugin.
func webhookConfig(apiVersion, path string) admission.Config {
	return admission.Config{"MutatingAdmissionWebhook": fmt.Appendf(nil,
		`{"apiVersion":%q,"kind":"WebhookAdmissionConfiguration","kubeConfigFile":%q}`, apiVersion, path)}
}

// The webhooks of a plugin see the credentials in the kubeconfig of its configuration. Those of the other plugin do
// not.
func TestWebhooks_SeeTheServersCredentials(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, []byte(hookKubeconfig), 0o600))
	h := hookedBy(connect(t, testenv.Start(t, testenv.APIServerOnly(), testenv.WithAdmission(admission.Options{
		Config: webhookConfig("apiserver.config.k8s.io/v1", path)}))))
	h.mutates("m", h.hook("m.example.com", nil))
	h.validates("v", h.hook("v.example.com", nil))
	seen := make(chan [2]string, 2)
	for _, name := range []string{"m.example.com", "v.example.com"} {
		h.on(name, func(w http.ResponseWriter, r *http.Request) {
			seen <- [2]string{r.Header.Get("Authorization"), r.UserAgent()}
			respond(m{"allowed": true})(w, r)
		})
	}
	h.create(configMaps, settings("c", nil))
	require.Equal(t, [2]string{"Bearer for-the-hook", "kube-apiserver-admission"}, <-seen)
	require.Equal(t, [2]string{"", "kube-apiserver-admission"}, <-seen)
}

// A server does not start with an invalid configuration.
func TestWebhooks_ConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config admission.Config
		words  string
	}{
		{webhookConfig("apiserver.config.k8s.io/v2", "/x"), `is apiserver.config.k8s.io/v2 "WebhookAdmissionConfiguration"`},
		{webhookConfig("apiserver.config.k8s.io/v1", "x"), `kubeConfigFile: "x" must be an absolute file path`},
		{webhookConfig("apiserver.config.k8s.io/v1", filepath.Join(t.TempDir(), "none")), "no such file or directory"},
	} {
		_, err := admission.NewChain(nil, admission.Options{Config: c.config})
		require.ErrorContains(t, err, c.words)
		require.ErrorContains(t, err, "admission plugin MutatingAdmissionWebhook: ")
	}
}
