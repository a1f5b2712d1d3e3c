package testenv

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/controllers"
)

// users makes the users of a control plane: client certificates of its CA.
type users struct {
	ca   *pki.CA
	host string
	// settings are those of the controllers, with what they sign with.
	settings controllers.Settings
	// external is the user of a server that is not the test's own, who makes the others by impersonation.
	external *rest.Config
}

// administrator is the user of Start's configuration.
const administrator = "kubernetes-admin"

// authorities are the users of the control planes that run, by their addresses.
var authorities sync.Map

// User is a configuration for another user of the control plane that config is for. RBAC is on: a user
// may do what roles grant to it and to its groups, and little besides. Every user is in the group
// system:authenticated.
//
//	viewer := testenv.User(t, config, "jane", "team-a")
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

// component is a user of this package's own. Warnings are dropped: a user that runs a test cannot act
// on them.
func (u *users) component(name string, groups ...string) (*rest.Config, error) {
	config, err := u.config(name, groups...)
	if err != nil {
		return nil, err
	}
	config.WarningHandler = rest.NoWarnings{}
	if u.external != nil {
		return config, nil
	}
	// client-go's own transport leaves a timer behind with each connection (its health check, after half a minute), and
	// that keeps the connection's buffers.
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("testenv: user %s: %w", name, err)
	}
	config.TLSClientConfig = rest.TLSClientConfig{}
	config.Transport = &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true, DisableCompression: true}
	return config, nil
}
