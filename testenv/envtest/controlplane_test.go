package envtest_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/testenv/envtest"
)

// started starts the environment and stops it when the test ends.
func started(t *testing.T, testEnv *envtest.Environment) *kubernetes.Clientset {
	t.Helper()
	cfg, err := testEnv.Start()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, testEnv.Stop()) })
	return kubernetes.NewForConfigOrDie(cfg)
}

func TestStart_RejectsUnsupportedSettings(t *testing.T) {
	t.Parallel()
	withCertificate, withData := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(withCertificate, "apiserver.crt"), nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(withData, "member"), 0o700))
	type server = envtest.APIServer
	set := func(name string, values ...string) func(*server, *envtest.Etcd) {
		return func(s *server, _ *envtest.Etcd) { s.Configure().Append(name, values...) }
	}
	for message, configure := range map[string]func(*server, *envtest.Etcd){
		"looking at a file: stat nowhere.yaml": func(s *server, _ *envtest.Etcd) {
			s.Configure().Append("audit-policy-file", "nowhere.yaml").Append("audit-log-path", "-")
		},
		"--allow-privileged: this server allows": set("allow-privileged", "false"),
		"unknown flag: --oidc-issuer-url":        set("oidc-issuer-url", "https://example.org"),
		"unknown flag: --insecure-port":          set("insecure-port", "8080"),
		"--authorization-mode=AlwaysAllow":       set("authorization-mode", "AlwaysAllow"),
		"--authorization-mode=RBAC,Webhook":      set("authorization-mode", "RBAC", "Webhook"),
		`admission plugin "Nobody" is unknown`:   set("enable-admission-plugins", "Nobody"),
		"--client-ca-file":                       set("client-ca-file", "nowhere.crt"),
		"--service-account-key-file: reading public keys: open nowhere": func(s *server, _ *envtest.Etcd) {
			s.Path = "nowhere"
			s.Args = append(envtest.DefaultKubeAPIServerFlags, "--service-account-key-file={{.Path}}")
		},
		`"audit" does not have the form`: func(s *server, _ *envtest.Etcd) { s.Args = []string{"audit"} },
		"address cannot be chosen": func(s *server, _ *envtest.Etcd) {
			s.SecureServing.ListenAddr = envtest.ListenAddr{Address: "127.0.0.1", Port: "6443"}
		},
		"InsecureServing":                      func(s *server, _ *envtest.Etcd) { s.InsecureServing = &envtest.ListenAddr{} },
		"serves with a certificate of its own": func(s *server, _ *envtest.Etcd) { s.CertDir = withCertificate },
		"no etcd serves there":                 func(_ *server, e *envtest.Etcd) { e.URL = &url.URL{Scheme: "http", Host: "u"} },
		"has data, which would not be read":    func(_ *server, e *envtest.Etcd) { e.DataDir = withData },
		"etcd's flag --listen-client-urls=u": func(_ *server, e *envtest.Etcd) {
			e.Configure().Set("unsafe-no-fsync", "true").Set("listen-client-urls", "u")
		},
	} {
		testEnv := &envtest.Environment{ControlPlane: envtest.ControlPlane{Etcd: &envtest.Etcd{}}}
		configure(testEnv.ControlPlane.GetAPIServer(), testEnv.ControlPlane.Etcd)
		_, err := testEnv.Start()
		require.ErrorContains(t, err, message)
		require.NoError(t, testEnv.Stop())
	}
}

// Flags that are harmless without an effect are accepted, and the log names the ones from which a reader might
// expect one.
func TestStart_LogsFlagsWithoutEffect(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	testEnv := &envtest.Environment{ControlPlane: envtest.ControlPlane{Etcd: &envtest.Etcd{DataDir: t.TempDir()}}}
	testEnv.ControlPlane.Etcd.Configure().Set("quota-backend-bytes", "1")
	server := testEnv.ControlPlane.GetAPIServer()
	server.Err = &log
	server.Args = envtest.DefaultKubeAPIServerFlags
	server.Configure().Append("feature-gates", "Some=true").Enable("profiling").Set("secure-port", "6443").
		Disable("etcd-cafile").Set("enable-admission-plugins", "AlwaysAdmit").Set("authorization-mode", "Node,RBAC")
	_, err := testEnv.Start()
	require.NoError(t, err)
	require.NoError(t, testEnv.Stop())
	require.Contains(t, log.String(), "--feature-gates=Some=true --enable-admission-plugins=AlwaysAdmit")
	require.NotContains(t, log.String(), "secure-port")
}

func TestFlags_OfAuthenticationHaveEffect(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	key, err := pki.NewKey()
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	signer := filepath.Join(folder, "sa.key")
	require.NoError(t, os.WriteFile(signer, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	ca, err := pki.NewNamedCA("team")
	require.NoError(t, err)
	authority := filepath.Join(folder, "ca.crt")
	require.NoError(t, os.WriteFile(authority, ca.PEM(), 0o600))

	testEnv := &envtest.Environment{}
	testEnv.ControlPlane.GetAPIServer().Configure().Set("anonymous-auth", "false").
		Set("service-account-issuer", "https://issuer.example.org").Set("service-account-signing-key-file", signer).
		Set("client-ca-file", authority)
	client, ctx := started(t, testEnv), t.Context()

	anonymous := kubernetes.NewForConfigOrDie(rest.AnonymousClientConfig(testEnv.Config))
	_, err = anonymous.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsUnauthorized(err), "%v", err)

	accounts := client.CoreV1().ServiceAccounts("default")
	_, err = accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = accounts.CreateToken(ctx, "a", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	discovered, err := client.RESTClient().Get().AbsPath("/.well-known/openid-configuration").DoRaw(ctx)
	require.NoError(t, err)
	require.Contains(t, string(discovered), `"https://issuer.example.org"`)

	cert, certKey, err := ca.Client("jane", "system:masters")
	require.NoError(t, err)
	config := rest.AnonymousClientConfig(testEnv.Config)
	config.CertData, config.KeyData = cert, certKey
	_, err = kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	require.NoError(t, err, "its CA is that of --client-ca-file")
}

// tokens is an Authn that makes users with a token file.
type tokens struct {
	file    string
	ended   bool
	refuses error
}

func (a *tokens) Configure(workDir string, args *envtest.Arguments) error {
	a.file = filepath.Join(workDir, "tokens.csv")
	args.Set("token-auth-file", a.file)
	return a.refuses
}

func (a *tokens) Start() error {
	return os.WriteFile(a.file, []byte("secret,admin,1,system:masters\nother,jane,2\n"), 0o600)
}

func (a *tokens) AddUser(user envtest.User, base *rest.Config) (*rest.Config, error) {
	config := rest.CopyConfig(base)
	config.BearerToken = "secret"
	if user.Name == "jane" {
		config.BearerToken = "other"
	}
	return config, nil
}

func (a *tokens) Stop() error {
	a.ended = true
	return nil
}

func TestAuthn_MakesTheUsers(t *testing.T) {
	t.Parallel()
	authn := &tokens{}
	testEnv := &envtest.Environment{}
	testEnv.ControlPlane.GetAPIServer().Authn = authn
	cfg, err := testEnv.Start()
	require.NoError(t, err)
	require.Equal(t, "secret", cfg.BearerToken)
	require.EqualValues(t, 1000, cfg.QPS)
	ctx := t.Context()
	_, err = kubernetes.NewForConfigOrDie(cfg).CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	jane, err := testEnv.AddUser(envtest.User{Name: "jane"}, nil)
	require.NoError(t, err)
	_, err = kubernetes.NewForConfigOrDie(jane.Config()).CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	require.ErrorContains(t, err, `User "jane" cannot list`)
	require.NoError(t, testEnv.Stop())
	require.True(t, authn.ended)
	require.NoFileExists(t, authn.file)

	authn.refuses = errors.New("no luck")
	_, err = testEnv.Start()
	require.ErrorContains(t, err, "no luck")
}

func TestTimeouts_EndStartAndStop(t *testing.T) {
	t.Parallel()
	testEnv := &envtest.Environment{ControlPlaneStartTimeout: time.Nanosecond}
	_, err := testEnv.Start()
	require.ErrorContains(t, err, "has not started within 1ns")
	testEnv.ControlPlaneStartTimeout, testEnv.ControlPlaneStopTimeout = time.Minute, time.Nanosecond
	_, err = testEnv.Start()
	require.NoError(t, err, "what came too late is no longer there")
	require.ErrorContains(t, testEnv.Stop(), "has not stopped within 1ns")
}

// The environment variables belong to the process, so this test is not parallel.
func TestTimeouts_AreReadFromTheEnvironment(t *testing.T) {
	t.Setenv("KUBEBUILDER_CONTROLPLANE_START_TIMEOUT", "soon")
	_, err := (&envtest.Environment{}).Start()
	require.ErrorContains(t, err, "KUBEBUILDER_CONTROLPLANE_START_TIMEOUT")
	t.Setenv("KUBEBUILDER_CONTROLPLANE_START_TIMEOUT", "1ns")
	_, err = (&envtest.Environment{}).Start()
	require.ErrorContains(t, err, "has not started within 1ns")
}

// A suite may stop the API server to check that its operator recovers.
func TestAPIServer_StopsAndStartsWithItsObjects(t *testing.T) {
	t.Parallel()
	testEnv := &envtest.Environment{}
	server := testEnv.ControlPlane.GetAPIServer()
	require.Error(t, server.Start(), "there is no control plane yet")
	require.NoError(t, server.Stop())
	client, ctx := started(t, testEnv), t.Context()
	address := *server.URL
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, server.Stop())
	_, err = client.CoreV1().Namespaces().Get(ctx, "a", metav1.GetOptions{})
	require.ErrorContains(t, err, "refused")
	require.NoError(t, server.Start())
	_, err = client.CoreV1().Namespaces().Get(ctx, "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, address, *server.URL)
	require.Error(t, testEnv.ControlPlane.Etcd.Start())
}

// An Environment may be started again: it is a new control plane, with the same definitions and webhooks.
func TestEnvironment_StartsAgain(t *testing.T) {
	t.Parallel()
	testEnv := &envtest.Environment{CRDDirectoryPaths: []string{"testdata/crd"},
		WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{"testdata/webhook"}}}
	for range 2 {
		cfg, err := testEnv.Start()
		require.NoError(t, err)
		require.Contains(t, string(testEnv.KubeConfig), cfg.Host)
		require.Len(t, testEnv.CRDs, 2)
		require.NoError(t, testEnv.Stop())
		require.Nil(t, testEnv.ControlPlane.APIURL())
	}
}

func TestKubeCtl_RunsAsAnAdministrator(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, os.Symlink("/bin/echo", filepath.Join(folder, "kubectl")))
	testEnv := &envtest.Environment{BinaryAssetsDirectory: folder}
	plane := &testEnv.ControlPlane
	require.Nil(t, plane.KubeCtl())
	started(t, testEnv)
	kubectl := plane.KubeCtl()
	if os.Getenv("TEST_ASSET_KUBECTL")+os.Getenv("KUBEBUILDER_ASSETS") == "" { // they take precedence
		require.Equal(t, filepath.Join(folder, "kubectl"), kubectl.Path)
	}
	config, err := plane.RESTClientConfig()
	require.NoError(t, err)
	_, err = kubernetes.NewForConfigOrDie(config).CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, config.Host, plane.APIURL().String())
	path := strings.TrimPrefix(kubectl.Opts[0], "--kubeconfig=")
	require.FileExists(t, path)
}

func TestArguments_RenderACommandLine(t *testing.T) {
	t.Parallel()
	args := envtest.EmptyArguments().Set("b", "2").Append("a", "3").Enable("c").Disable("d").AppendNoDefaults("e", "5")
	defaults := map[string][]string{"a": {"1"}, "d": {"4"}, "e": {"0"}, "f": {"6"}}
	require.Equal(t, []string{"--a=1", "--a=3", "--b=2", "--c", "--e=5", "--f=6"}, args.AsStrings(defaults))
}
