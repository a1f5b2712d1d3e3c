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
	// settings are those of the controllers, with what they sign with.
	settings controllers.Settings
	// external is the user of a server that is not the test's own, who makes the others by impersonation.
	external *rest.Config
	// direct carries the requests of the environment's own parts; nil with external.
	direct *inprocess.Server
}

// administrator is the user of Environment.Config.
const administrator = "kubernetes-admin"

// authorities are the users of the control planes that run, by their addresses.
var authorities sync.Map

// User is a configuration for another user of the environment. RBAC is on: a user may do what roles grant to it and to
// its groups, and little besides. Every user is in the group system:authenticated.
//
//	viewer := env.User("jane", "team-a")
func (e *Environment) User(name string, groups ...string) *rest.Config {
	config, err := e.users.config(name, groups...)
	if err != nil {
		panic(err) // a key cannot be made: nothing works on such a machine
	}
	return config
}

// accountToken is how long the tokens of ServiceAccount are valid: longer than any test, even by a clock that is moved
// by hand.
const accountToken = 10 * 365 * 24 * 3600 // seconds

// ServiceAccount is a configuration with a token of a ServiceAccount, as its pods get it, and therefore with the rights
// of the operator in its cluster and not a test's. The account is created if it is missing; its namespace must exist.
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

// KubeConfig is a kubeconfig, as tools read it, for a configuration: an environment's Config, or one of User or
// ServiceAccount.
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

// KubeConfigFile writes KubeConfig to a file that is there until the environment stops, and returns its path.
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
	file, err := os.CreateTemp(folder, "*.kubeconfig") // which others may not read
	if err != nil {
		return "", fmt.Errorf("testenv: kubeconfig: %w", err)
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Close()); err != nil {
		return "", fmt.Errorf("testenv: kubeconfig: %w", err)
	}
	return file.Name(), nil
}

// client is an administrator's, with connections of its own that done closes.
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

// ownConfig is the configuration of the environment's own requests, with connections of their own if it needs any.
func (e *Environment) ownConfig() (*rest.Config, *http.Client, error) {
	config, err := e.users.component(administrator, "system:masters")
	if err != nil {
		return nil, nil, err
	}
	config.UserAgent = ownAgent
	connections, err := rest.HTTPClientFor(config)
	return config, connections, err
}

// User is Environment.User for the environment that config is of.
func User(t testing.TB, config *rest.Config, name string, groups ...string) *rest.Config {
	t.Helper()
	of, ok := authorities.Load(config.Host)
	if !ok {
		t.Fatalf("testenv: no control plane of this package runs at %s", config.Host)
	}
	user, err := of.(*users).config(name, groups...)
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
		// Over loopback compression is only work.
		DisableCompression: true,
	}, nil
}

// clientCAs are those by which nodes know who asks.
func (u *users) clientCAs() *x509.CertPool {
	if u.ca == nil {
		return nil
	}
	return u.ca.Pool()
}

// controller is the ServiceAccount of a controller.
func (u *users) controller(account string) (*rest.Config, error) {
	return u.component("system:serviceaccount:kube-system:"+account, "system:serviceaccounts",
		"system:serviceaccounts:kube-system")
}

func (u *users) node(name string) (*rest.Config, error) {
	return u.component("system:node:"+name, "system:nodes")
}

// component is a user of this package's own, whose requests need no connections where the API server is in the same
// process. Warnings are dropped: a user that runs a test cannot act on them.
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
