package webhook

import (
	"fmt"
	"net"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Credentials holds the users of a kubeconfig. Each user is named after the targets that get its credentials:
// host:port or name.namespace.svc:port, where a star may replace the first labels, or * for all targets. Port 443
// may be left out. A target that matches no name gets the user of the current context. Credentials is immutable.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#authenticate-apiservers
type Credentials struct{ config clientcmdapi.Config }

// ReadCredentials reads a kubeconfig. The files it refers to are read on the first call to a target.
func ReadCredentials(path string) (*Credentials, error) {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig of webhooks: %w", err)
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, fmt.Errorf("the kubeconfig of webhooks: %w", err)
	}
	for name, user := range config.AuthInfos {
		if user.AuthProvider != nil {
			return nil, fmt.Errorf("the kubeconfig of webhooks: user %s: auth provider not supported", name)
		}
	}
	return &Credentials{*config}, nil
}

// user returns the user for a target of the form host:port, or nil if there is none.
func (c *Credentials) user(target string) *clientcmdapi.AuthInfo {
	if c == nil {
		return nil
	}
	if user := c.named(target); user != nil {
		return user
	}
	if host, port, err := net.SplitHostPort(target); err == nil && port == "443" {
		if user := c.named(host); user != nil {
			return user
		}
	}
	if user := c.config.AuthInfos["*"]; user != nil {
		return user
	}
	if current := c.config.Contexts[c.config.CurrentContext]; current != nil {
		return c.config.AuthInfos[current.AuthInfo]
	}
	return nil
}

// named returns the user named exactly like the target, or else the one with the longest matching wildcard name.
func (c *Credentials) named(target string) *clientcmdapi.AuthInfo {
	if user := c.config.AuthInfos[target]; user != nil {
		return user
	}
	for rest := target; ; {
		var more bool
		if _, rest, more = strings.Cut(rest, "."); !more {
			return nil
		}
		if user := c.config.AuthInfos["*."+rest]; user != nil {
			return user
		}
	}
}

// authenticate makes the transport present the user's certificate, token or password.
func (t *transport) authenticate(user *clientcmdapi.AuthInfo) error {
	config := &rest.Config{
		BearerToken: user.Token, BearerTokenFile: user.TokenFile,
		Username: user.Username, Password: user.Password, ExecProvider: user.Exec.DeepCopy(),
		TLSClientConfig: rest.TLSClientConfig{CertFile: user.ClientCertificate, CertData: user.ClientCertificateData,
			KeyFile: user.ClientKey, KeyData: user.ClientKeyData},
		Impersonate: rest.ImpersonationConfig{UserName: user.Impersonate, UID: user.ImpersonateUID,
			Groups: user.ImpersonateGroups, Extra: user.ImpersonateUserExtra},
	}
	if user.Token == "" && user.TokenFile != "" {
		token, err := os.ReadFile(user.TokenFile)
		if err != nil {
			return fmt.Errorf("the token of webhooks: %w", err)
		}
		config.BearerToken = string(token)
	}
	certificates, err := rest.TLSConfigFor(config)
	if err != nil {
		return fmt.Errorf("the certificate for webhooks: %w", err)
	}
	if certificates != nil {
		t.TLSClientConfig.Certificates = certificates.Certificates
		t.TLSClientConfig.GetClientCertificate = certificates.GetClientCertificate
	}
	if t.shows, err = rest.HTTPWrappersForConfig(config, t.Transport); err != nil {
		return fmt.Errorf("the credentials for webhooks: %w", err)
	}
	return nil
}
