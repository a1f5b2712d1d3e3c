package testenv

import (
	"crypto"
	"slices"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// WithAuthentication accepts further credentials, as the API server's flags do. Client certificates of the control
// plane's own CA and tokens of service accounts are accepted in any case. ClientCAs are added to that CA if they
// are authn.PublishedCAs.
func WithAuthentication(a authn.Options) Option { return func(o *options) { o.authentication = a } }

// credentials returns the requested credentials, completed by the CA and the issuer that every control plane has.
func (o *options) credentials(ca *pki.CA) (authn.Options, error) {
	a := o.authentication
	trusted := ca.PEM()
	if a.ClientCAs != nil {
		trusted = slices.Concat(trusted, a.ClientCAs.PEM())
	}
	a.ClientCAs = authn.PublishedCAs(trusted)
	if a.ServiceAccounts != nil {
		return a, nil
	}
	key, err := o.signingKey()
	if err != nil {
		return a, err
	}
	a.ServiceAccounts, err = authn.NewIssuer(authn.IssuerOptions{SigningKey: key, Clock: o.clock})
	return a, err
}

// authority returns the environment's CA, and signingKey the key that signs the tokens of service accounts. A fork
// has the ones of the environment that it was forked from.
func (o *options) authority() (*pki.CA, error) {
	if o.fork != nil {
		return o.fork.ca, nil
	}
	return o.newCA("coxswain")
}

func (o *options) signingKey() (crypto.Signer, error) {
	if o.fork != nil {
		return o.fork.key, nil
	}
	return pki.NewKey()
}

// frontProxy is the user of the client certificate that extension servers accept from the API server.
const frontProxy = "front-proxy-client"

// believe adds the API server's own front proxy to the credentials, unless another one is configured. It returns
// the front proxy's certificate.
func (o *options) believe(a *authn.Options) (pki.Certificate, error) {
	ca, err := o.newCA("front-proxy-ca")
	if err != nil {
		return nil, err
	}
	if a.RequestHeader == nil {
		a.RequestHeader = &authn.RequestHeader{CAs: authn.PublishedCAs(ca.PEM()), AllowedNames: []string{frontProxy},
			Headers: authn.StandardIdentityHeaders()}
	}
	return ca.ClientCertificate(frontProxy), nil
}

// signing returns the settings that let the controllers sign: the control plane's own CAs and key.
func (o *options) signing(ca *pki.CA, issuer *authn.Issuer) (s controllers.Settings, err error) {
	nodes, err := o.newCA("kubelet-serving-ca")
	if err != nil {
		return s, err
	}
	s.RootCA = ca.PEM()
	for into, from := range map[*controller.KeyPair]*pki.CA{&s.Signing.Default: ca, &s.Signing.KubeletServing: nodes} {
		key, err := from.KeyPEM()
		if err != nil {
			return s, err
		}
		*into = controller.KeyPair{Cert: from.PEM(), Key: key}
	}
	s.ServiceAccountKey, err = pki.KeyPEM(issuer.SigningKey)
	return s, err
}
