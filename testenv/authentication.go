package testenv

import (
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/controller"
)

// WithAuthentication accepts further credentials, as the API server's flags do. Certificates
// of the control plane's own CA and the tokens of service accounts are accepted in any case.
func WithAuthentication(a authn.Options) Option { return func(o *options) { o.authentication = a } }

// credentials are the ones that are asked for, completed by those that every control plane has.
func (o *options) credentials(ca *pki.CA) (authn.Options, error) {
	a := o.authentication
	a.ClientCAs = authn.FixedCAs(ca.Pool())
	if a.ServiceAccounts != nil {
		return a, nil
	}
	key, err := pki.NewKey()
	if err != nil {
		return a, err
	}
	a.ServiceAccounts, err = authn.NewIssuer(authn.IssuerOptions{SigningKey: key, Clock: o.clock})
	return a, err
}

// signing is what the controllers sign with: the control plane's own CA and key.
func signing(ca *pki.CA, issuer *authn.Issuer) (s controllers.Settings, err error) {
	key, err := ca.KeyPEM()
	if err != nil {
		return s, err
	}
	s.RootCA = ca.PEM()
	s.Signing.Default = controller.KeyPair{Cert: ca.PEM(), Key: key}
	s.ServiceAccountKey, err = pki.KeyPEM(issuer.SigningKey)
	return s, err
}
