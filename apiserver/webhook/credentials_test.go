package webhook

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// kubeconfig returns the credentials of a kubeconfig with the users. The current context has the user named
// current.
func kubeconfig(t *testing.T, current string, users map[string]*clientcmdapi.AuthInfo) *Credentials {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.AuthInfos = users
	if current != "" {
		config.Contexts["now"] = &clientcmdapi.Context{AuthInfo: current}
		config.CurrentContext = "now"
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, path))
	credentials, err := ReadCredentials(path)
	require.NoError(t, err)
	return credentials
}

func TestCredentials_MatchTargetsByName(t *testing.T) {
	t.Parallel()
	user := func(name string) *clientcmdapi.AuthInfo { return &clientcmdapi.AuthInfo{Username: name, Password: "x"} }
	all := map[string]*clientcmdapi.AuthInfo{}
	for _, name := range []string{"hook.shop.svc", "hook.shop.svc:8443", "*.shop.svc", "*.svc:9443", "example.com",
		"example.com:444", "*.example.com", "10.0.0.1:7", "me"} {
		all[name] = user(name)
	}
	withStar := map[string]*clientcmdapi.AuthInfo{"*": user("*"), "a:443": user("a:443"), "me": user("me")}
	for _, c := range []struct {
		users         map[string]*clientcmdapi.AuthInfo
		current       string
		target, shown string
	}{
		{all, "", "hook.shop.svc:443", "hook.shop.svc"}, {all, "", "hook.shop.svc:8443", "hook.shop.svc:8443"},
		{all, "", "other.shop.svc:443", "*.shop.svc"}, {all, "", "other.shop.svc:8443", ""},
		{all, "", "other.shop.svc:9443", "*.svc:9443"}, {all, "", "hook.shop.svc:1", ""},
		{all, "", "example.com:443", "example.com"}, {all, "", "example.com:444", "example.com:444"},
		{all, "", "example.com:445", ""}, {all, "", "a.example.com:443", "*.example.com"},
		{all, "", "a.b.example.com:443", "*.example.com"}, {all, "", "10.0.0.1:7", "10.0.0.1:7"},
		{all, "", "10.0.0.1:443", ""}, {all, "me", "10.0.0.1:443", "me"}, {all, "me", "example.com:443", "example.com"},
		{withStar, "", "b:443", "*"}, {withStar, "", "a:443", "a:443"}, {withStar, "me", "b:1", "*"},
	} {
		shown := ""
		if u := kubeconfig(t, c.current, c.users).user(c.target); u != nil {
			shown = u.Username
		}
		require.Equal(t, c.shown, shown, c.target)
	}
	var none *Credentials
	require.Nil(t, none.user("a:443"))
}

func TestCredentials_ArePresented(t *testing.T) {
	t.Parallel()
	ca, err := pki.NewCA()
	require.NoError(t, err)
	serving, err := ca.Server("127.0.0.1")
	require.NoError(t, err)
	seen := make(chan [3]string, 1)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := ""
		if len(r.TLS.PeerCertificates) > 0 {
			name = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		seen <- [3]string{r.Header.Get("Authorization"), name, r.UserAgent()}
		_, _ = w.Write([]byte("{}"))
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequestClientCert,
		ClientCAs: ca.Pool()}
	s.StartTLS()
	t.Cleanup(s.Close)
	cert, key, err := ca.Client("the-api-server")
	require.NoError(t, err)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("from-a-file"), 0o600))
	c := client(t, Options{})
	for name, want := range map[string]struct {
		user *clientcmdapi.AuthInfo
		seen [3]string
	}{
		"token":    {&clientcmdapi.AuthInfo{Token: "t"}, [3]string{"Bearer t", "", "me"}},
		"file":     {&clientcmdapi.AuthInfo{TokenFile: token}, [3]string{"Bearer from-a-file", "", "me"}},
		"password": {&clientcmdapi.AuthInfo{Username: "u", Password: "p"}, [3]string{"Basic dTpw", "", "me"}},
		"certificate": {&clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key},
			[3]string{"", "the-api-server", "me"}},
		"none": {nil, [3]string{"", "", "me"}},
	} {
		users := map[string]*clientcmdapi.AuthInfo{"unused": {Token: "secret"}}
		if want.user != nil {
			users["*"] = want.user
		}
		target := Target{URL: s.URL, CABundle: ca.PEM(), UserAgent: "me", Credentials: kubeconfig(t, "", users)}
		_, err := c.Call(t.Context(), target, []byte("{}"), 100)
		require.NoError(t, err, name)
		require.Equal(t, want.seen, <-seen, name)
	}
	// Connections are not shared between users.
	require.Len(t, c.transports, 5)

	target := Target{URL: s.URL, CABundle: ca.PEM(), Credentials: kubeconfig(t, "", map[string]*clientcmdapi.AuthInfo{
		"*": {TokenFile: token + ".gone"}})}
	_, err = c.Call(t.Context(), target, nil, 100)
	require.ErrorContains(t, err, "the token of webhooks: open ")
}

func TestReadCredentials_RejectsUnsupportedCredentials(t *testing.T) {
	t.Parallel()
	_, err := ReadCredentials(filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "the kubeconfig of webhooks: open ")
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := clientcmdapi.NewConfig()
	config.AuthInfos["*"] = &clientcmdapi.AuthInfo{AuthProvider: &clientcmdapi.AuthProviderConfig{Name: "gcp"}}
	require.NoError(t, clientcmd.WriteToFile(*config, path))
	_, err = ReadCredentials(path)
	require.ErrorContains(t, err, "user *: auth provider not supported")
}
