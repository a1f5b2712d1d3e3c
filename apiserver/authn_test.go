package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/internal/kubeversion"
)

var protocols = map[string]bool{"HTTP/1.1": false, "HTTP/2": true}

func TestAuthenticate_AnonymousMayReadHealthAndVersion(t *testing.T) {
	t.Parallel()
	s := start(t)
	anonymous := rest.CopyConfig(s.config)
	anonymous.CertData, anonymous.KeyData = nil, nil
	for name, http2 := range protocols {
		t.Run(name, func(t *testing.T) {
			s := &server{t: t, config: anonymous, http: httpClient(t, anonymous, http2)}
			for _, path := range []string{"/", "/api", "/apis", "/api/v1", "/apis/apps/v1", pods, nodes, "/metrics",
				"/openapi/v2", "/openapi/v3", "/debug/pprof/", "/nothing"} {
				s.get(path).refused(http.StatusForbidden, metav1.StatusReasonForbidden,
					`User "system:anonymous" cannot `)
			}
			s.do(http.MethodPost, configMaps, configMap("a")).refused(http.StatusForbidden,
				metav1.StatusReasonForbidden,
				`configmaps is forbidden: User "system:anonymous" cannot create resource "configmaps" in API group "" in the namespace "default"`)
			for _, path := range []string{"/livez", "/readyz", "/healthz"} {
				require.Equal(t, "ok", string(s.get(path).ok(http.StatusOK).body))
			}
			require.Contains(t, s.get("/version").ok(http.StatusOK).at("gitVersion"), kubeversion.Coxswain)
		})
	}
	s.gone(configMaps + "/a")
}

func TestAuthenticate_NoCredentialGets401WithoutAnonymous(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options authn.Options
		codes   map[string]int
	}{
		"nowhere": {authn.Options{NoAnonymous: true}, map[string]int{"/livez": 401, "/version": 401, pods: 401}},
		"at some paths": {authn.Options{AnonymousPaths: []string{"/livez", pods}},
			map[string]int{"/livez": 200, "/livez/ping": 401, "/livez?verbose": 200, "/version": 401, pods: 403, pods +
				"/": 401, pods + "/a": 401}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := assemble(t, builtin.Kinds(), apiserver.Options{Authentication: c.options})
			config := rest.CopyConfig(s.config)
			config.CertData, config.KeyData = nil, nil
			stranger := &server{t: t, config: config, http: httpClient(t, config, true)}
			for path, code := range c.codes {
				require.Equal(t, code, stranger.get(path).code, path)
			}
		})
	}
}

func TestAuthenticate_CertificateOfForeignCAGets401(t *testing.T) {
	t.Parallel()
	s := start(t)
	ca, err := pki.NewCA()
	require.NoError(t, err)
	foreign := rest.CopyConfig(s.config)
	foreign.CertData, foreign.KeyData, err = ca.Client("kubernetes-admin", "system:masters")
	require.NoError(t, err)
	for name, http2 := range protocols {
		t.Run(name, func(t *testing.T) {
			s := &server{t: t, config: foreign, http: httpClient(t, foreign, http2)}
			for _, path := range []string{pods, "/api", "/livez"} {
				s.get(path).refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
			}
		})
	}
}

func TestServe_SpeaksHTTP1AndHTTP2(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, http2 := range protocols {
		t.Run(name, func(t *testing.T) {
			s := &server{t: t, config: s.config, http: httpClient(t, s.config, http2)}
			res := s.send(http.MethodGet, pods, nil)
			defer res.Body.Close()
			require.Equal(t, http.StatusOK, res.StatusCode)
			require.Equal(t, http2, res.ProtoMajor == 2)
		})
	}
}
