package serviceaccounttoken

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/keyutil"
)

// signer signs tokens that name their secret. A token is valid only while the secret contains it.
type signer struct{ jose.Signer }

// issuer is the issuer of all tokens in secrets. It does not depend on the issuer of other tokens.
const issuer = "kubernetes/serviceaccount"

// claims are the legacy claims of Kubernetes, which are not nested.
type claims struct {
	jwt.Claims
	Namespace  string `json:"kubernetes.io/serviceaccount/namespace"`
	Secret     string `json:"kubernetes.io/serviceaccount/secret.name"`
	Account    string `json:"kubernetes.io/serviceaccount/service-account.name"`
	AccountUID string `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

// newSigner reads an ECDSA or RSA key in PEM.
func newSigner(key []byte) (*signer, error) {
	parsed, err := keyutil.ParsePrivateKeyPEM(key)
	private, ok := parsed.(crypto.Signer)
	if err != nil || !ok {
		return nil, errKey
	}
	algorithm := jose.RS256
	if ec, ok := private.(*ecdsa.PrivateKey); ok {
		algorithm = map[elliptic.Curve]jose.SignatureAlgorithm{
			elliptic.P256(): jose.ES256, elliptic.P384(): jose.ES384, elliptic.P521(): jose.ES512,
		}[ec.Curve]
	}
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		return nil, fmt.Errorf("the service accounts' key: %w", err)
	}
	// The API server finds the key by this id.
	id := sha256.Sum256(der)
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{
		Key: private, KeyID: base64.RawURLEncoding.EncodeToString(id[:]), Algorithm: string(algorithm),
	}}, nil)
	if err != nil {
		return nil, fmt.Errorf("the service accounts' key: %w", err)
	}
	return &signer{s}, nil
}

func (s *signer) sign(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	token, err := jwt.Signed(s.Signer).Claims(claims{
		Claims: jwt.Claims{Issuer: issuer, Subject: "system:serviceaccount:" + account.Namespace + ":" +
			account.Name},
		Namespace: account.Namespace, Secret: secret.Name, Account: account.Name, AccountUID: string(account.UID),
	}).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return token, nil
}
