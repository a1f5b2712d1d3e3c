package testenv

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/testenv/inprocess"
)

// users makes the users of a control plane: client certificates of its CA.
type users struct {
	ca   *pki.CA
	host string
	// settings are the controllers' settings, including the keys with which they sign.
	settings controllers.Settings
	// external is the user of an external server. It makes the other users by impersonation.
	external *rest.Config
	// direct carries the requests of the environment's own parts; nil with external.
	direct *inprocess.Server
}

// administrator is the user of Environment.Config.
const administrator = "kubernetes-admin"

// authorities holds the users of the running control planes, by their addresses.
var authorities sync.Map

// User returns a configuration for another user of the environment. RBAC is on: a user may do the actions that
// roles grant to it and to its groups, and little else. Every user is in the group system:authenticated.
//
//	viewer := env.User("jane", "team-a")
func (e *Environment) User(name string, groups ...string) *rest.Config {
	config, err := e.users.config(name, groups...)
	if err != nil {
		panic(err) // no key can be made: such a machine cannot run a control plane
	}
	return config
}

// accountToken is how long the tokens of ServiceAccount are valid: longer than any test, even with a clock that is
// moved by hand.
const accountToken = 10 * 365 * 24 * 3600 // seconds

// ServiceAccount returns a configuration with a token of a ServiceAccount, like the token in its pods. It has the
// rights that the operator has in its cluster, and not a test's. The account is created if it is missing; its
// namespace must exist.
func (e *Environment) ServiceAccount(ctx context.Context, namespace, name string) (*rest.Config, error) {
	client, done, err := e.client()
	if err != nil {
		return nil, err
	}
	defer done()
	accounts := client.CoreV1().ServiceAccounts(namespace)
	_, err = accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("testenv: ServiceAccount %s/%s: %w", namespace, name, err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: new(int64(accountToken))}}
	answer, err := accounts.CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("testenv: a token for the ServiceAccount %s/%s: %w", namespace, name, err)
	}
	config := rest.AnonymousClientConfig(e.Config)
	config.BearerToken = answer.Status.Token
	return config, nil
}

// KubeConfig returns a kubeconfig, for tools, with the content of a configuration: an environment's Config, or one
// of User or ServiceAccount.
func KubeConfig(config *rest.Config) ([]byte, error) {
	config = rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("testenv: kubeconfig: %w", err)
	}
	const name = "testenv"
	user := &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
		Token: config.BearerToken, Username: config.Username, Password: config.Password,
		Impersonate: config.Impersonate.UserName, ImpersonateGroups: config.Impersonate.Groups}
	server := &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData,
		InsecureSkipTLSVerify: config.Insecure}
	return clientcmd.Write(clientcmdapi.Config{CurrentContext: name,
		Clusters:  map[string]*clientcmdapi.Cluster{name: server},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{name: user},
		Contexts:  map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}}})
}

// KubeConfigFile writes KubeConfig to a file that exists until the environment stops, and returns its path.
//
//	kubectl.Env = append(os.Environ(), "KUBECONFIG="+path)
func (e *Environment) KubeConfigFile(config *rest.Config) (path string, err error) {
	content, err := KubeConfig(config)
	if err != nil {
		return "", err
	}
	folder, err := e.files()
	if err != nil {
		return "", err
	}
	file, err := os.CreateTemp(folder, "*.kubeconfig") // not readable for others
	if err != nil {
		return "", fmt.Errorf("testenv: kubeconfig: %w", err)
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Close()); err != nil {
		return "", fmt.Errorf("testenv: kubeconfig: %w", err)
	}
	return file.Name(), nil
}

// client returns an administrator's client. done closes its connections.
func (e *Environment) client() (client kubernetes.Interface, done func(), err error) {
	config, connections, err := e.ownConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("testenv: %w", err)
	}
	if client, err = kubernetes.NewForConfigAndClient(config, connections); err != nil {
		return nil, nil, fmt.Errorf("testenv: %w", err)
	}
	return client, func() { utilnet.CloseIdleConnectionsFor(connections.Transport) }, nil
}

// dynamicClient is client for any kind.
func (e *Environment) dynamicClient() (client dynamic.Interface, done func(), err error) {
	config, connections, err := e.ownConfig()
	if err != nil {
		return nil, nil, err
	}
	if client, err = dynamic.NewForConfigAndClient(config, connections); err != nil {
		return nil, nil, err
	}
	return client, func() { utilnet.CloseIdleConnectionsFor(connections.Transport) }, nil
}

// ownConfig returns the configuration of the environment's own requests, and an HTTP client for them.
func (e *Environment) ownConfig() (*rest.Config, *http.Client, error) {
	config, err := e.users.component(administrator, "system:masters")
	if err != nil {
		return nil, nil, err
	}
	config.UserAgent = ownAgent
	connections, err := rest.HTTPClientFor(config)
	return config, connections, err
}

// User is Environment.User for the environment that config leads to.
func User(t testing.TB, config *rest.Config, name string, groups ...string) *rest.Config {
	t.Helper()
	owner, ok := authorities.Load(config.Host)
	if !ok {
		t.Fatalf("testenv: no control plane of this package runs at %s", config.Host)
	}
	user, err := owner.(*users).config(name, groups...)
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func (u *users) config(name string, groups ...string) (*rest.Config, error) {
	if u.external != nil {
		config := rest.CopyConfig(u.external)
		if name != administrator {
			config.Impersonate = rest.ImpersonationConfig{UserName: name,
				Groups: append(groups, "system:authenticated")}
		}
		return config, nil
	}
	cert, key, err := u.ca.Client(name, groups...)
	if err != nil {
		return nil, fmt.Errorf("testenv: user %s: %w", name, err)
	}
	return &rest.Config{
		Host:            u.host,
		TLSClientConfig: rest.TLSClientConfig{CAData: u.ca.PEM(), CertData: cert, KeyData: key},
		QPS:             -1,
		// Over loopback, compression costs more than it saves.
		DisableCompression: true,
	}, nil
}

// clientCAs returns the CAs that issue the client certificates which nodes accept.
func (u *users) clientCAs() *x509.CertPool {
	if u.ca == nil {
		return nil
	}
	return u.ca.Pool()
}

// controller returns the configuration of a controller's ServiceAccount.
func (u *users) controller(account string) (*rest.Config, error) {
	return u.component("system:serviceaccount:kube-system:"+account, "system:serviceaccounts",
		"system:serviceaccounts:kube-system")
}

func (u *users) node(name string) (*rest.Config, error) {
	return u.component("system:node:"+name, "system:nodes")
}

// component returns the configuration of a part of the control plane. If the API server is in the same process, its
// requests need no connections. Warnings are dropped: the author of the test cannot act on them.
func (u *users) component(name string, groups ...string) (*rest.Config, error) {
	config, err := u.config(name, groups...)
	if err != nil {
		return nil, err
	}
	config.WarningHandler = rest.NoWarnings{}
	if u.direct == nil {
		return config, nil
	}
	shown, _ := pem.Decode(config.CertData)
	certificate, err := x509.ParseCertificate(shown.Bytes)
	if err != nil {
		return nil, fmt.Errorf("testenv: user %s: %w", name, err)
	}
	config.TLSClientConfig, config.Transport = rest.TLSClientConfig{}, u.direct.Client(certificate)
	return config, nil
}
