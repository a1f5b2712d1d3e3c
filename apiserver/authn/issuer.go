package authn

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/clock"
)

// DefaultIssuer is the default issuer of service account tokens.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// IssuerOptions configure the issuer of service account tokens, and its keys.
type IssuerOptions struct {
	// Issuers are the accepted issuer names; new tokens get the first. Nil is DefaultIssuer.
	Issuers []string
	// SigningKey is an ECDSA or RSA key. Keys are further public keys; tokens signed with them are accepted.
	SigningKey crypto.Signer
	Keys       []crypto.PublicKey
	// Audiences are the names of the API server. A token must have one of them to be accepted for
	// requests. Nil is Issuers.
	Audiences []string
	// JWKSURI is the address at which other parties find the public keys. "" is an address below the first issuer.
	JWKSURI string
	// MaxExpiration limits the lifetime of new tokens; 0 is no limit.
	MaxExpiration time.Duration
	// KeepExpiration makes tokens of pods expire after the hour that pods request. Otherwise they are
	// valid for a year, for clients that do not reread their file.
	KeepExpiration bool
	Clock          clock.PassiveClock
}

// Issuer signs the tokens of service accounts, and verifies its own. It is safe for concurrent use.
type Issuer struct {
	IssuerOptions
	signer     jose.Signer
	keys       []jose.JSONWebKey
	algorithms []jose.SignatureAlgorithm
}

// NewIssuer validates the options, and returns the issuer.
func NewIssuer(o IssuerOptions) (*Issuer, error) {
	if len(o.Issuers) == 0 {
		o.Issuers = []string{DefaultIssuer}
	}
	for _, issuer := range o.Issuers {
		if strings.Contains(issuer, ":") {
			if _, err := url.Parse(issuer); err != nil {
				return nil, fmt.Errorf("authn: issuer of service account tokens: %w", err)
			}
		}
	}
	if len(o.Audiences) == 0 {
		o.Audiences = o.Issuers
	}
	if o.JWKSURI == "" {
		o.JWKSURI = strings.TrimSuffix(o.Issuers[0], "/") + "/openid/v1/jwks"
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	i := &Issuer{IssuerOptions: o}
	if o.SigningKey == nil {
		return nil, errors.New("authn: a signing key for service account tokens is required")
	}
	for _, key := range slices.Concat([]crypto.PublicKey{o.SigningKey.Public()}, o.Keys) {
		jwk, err := publicJWK(key)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(i.keys, func(k jose.JSONWebKey) bool { return k.KeyID == jwk.KeyID }) {
			i.keys = append(i.keys, jwk)
		}
		if alg := jose.SignatureAlgorithm(jwk.Algorithm); !slices.Contains(i.algorithms, alg) {
			i.algorithms = append(i.algorithms, alg)
		}
	}
	key := jose.JSONWebKey{Key: o.SigningKey, KeyID: i.keys[0].KeyID, Algorithm: i.keys[0].Algorithm}
	var err error
	i.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: i.algorithms[0], Key: key}, nil)
	if err != nil {
		return nil, fmt.Errorf("authn: signing key of service account tokens: %w", err)
	}
	return i, nil
}

func (i *Issuer) now() time.Time { return i.Clock.Now() }

// TokenRequest is the content of a new token. At most one of Pod, Secret and Node binds it, except that a pod's
// token also names its node, which may lack a UID.
type TokenRequest struct {
	Account   *corev1.ServiceAccount
	Pod       *corev1.Pod
	Secret    *corev1.Secret
	Node      *corev1.Node
	Audiences []string
	IssuedAt  time.Time
	Lifetime  time.Duration
	// WarnAfter, if not 0, is the age when the token should have been replaced.
	WarnAfter time.Duration
}

// Sign returns a signed token.
func (i *Issuer) Sign(r TokenRequest) (string, error) {
	issued := jwt.NewNumericDate(r.IssuedAt)
	c := claims{
		Claims: jwt.Claims{
			Issuer: i.Issuers[0], Subject: ServiceAccountName(r.Account.Namespace, r.Account.Name),
			IssuedAt: issued, NotBefore: issued, Expiry: jwt.NewNumericDate(r.IssuedAt.Add(r.Lifetime)),
			ID: string(uuid.NewUUID()),
		},
		Audience: r.Audiences,
		Kubernetes: &boundTo{Namespace: r.Account.Namespace,
			ServiceAccount: reference{r.Account.Name, string(r.Account.UID)}},
	}
	if r.Pod != nil {
		c.Kubernetes.Pod = &reference{r.Pod.Name, string(r.Pod.UID)}
	}
	if r.Secret != nil {
		c.Kubernetes.Secret = &reference{r.Secret.Name, string(r.Secret.UID)}
	}
	if r.Node != nil {
		c.Kubernetes.Node = &reference{r.Node.Name, string(r.Node.UID)}
	}
	if r.WarnAfter != 0 {
		c.Kubernetes.WarnAfter = jwt.NewNumericDate(r.IssuedAt.Add(r.WarnAfter))
	}
	token, err := jwt.Signed(i.signer).Claims(c).Serialize()
	if err != nil {
		return "", fmt.Errorf("authn: signing a token: %w", err)
	}
	return token, nil
}

// issued reports whether a token claims to be the issuer's.
func (i *Issuer) issued(token string) bool {
	issuer := claimedIssuer(token)
	return issuer != "" && (issuer == legacyIssuer || slices.Contains(i.Issuers, issuer))
}

// verify returns the claims of a token if one of the keys has signed it. The key determines the algorithm: the
// token's header must agree with it, and does not select it.
func (i *Issuer) verify(token string) (*claims, error) {
	signed, err := jwt.ParseSigned(token, i.algorithms)
	if err != nil || len(signed.Headers) != 1 {
		return nil, errBadToken
	}
	header := signed.Headers[0]
	for _, key := range i.keys {
		if header.KeyID != "" && header.KeyID != key.KeyID || header.Algorithm != key.Algorithm {
			continue
		}
		c := &claims{}
		if err := signed.Claims(key.Key, c); err == nil {
			return c, nil
		}
	}
	return nil, errors.New("service account token: not signed by a known key")
}

// JWKS returns the public keys, as in the issuer's JWKS document.
func (i *Issuer) JWKS() jose.JSONWebKeySet { return jose.JSONWebKeySet{Keys: i.keys} }

// Discovery is the part of an OpenID configuration that applies to tokens without a login.
type Discovery struct {
	Issuer        string   `json:"issuer"`
	JWKSURI       string   `json:"jwks_uri"`
	ResponseTypes []string `json:"response_types_supported"`
	SubjectTypes  []string `json:"subject_types_supported"`
	Algorithms    []string `json:"id_token_signing_alg_values_supported"`
}

// Discovery returns the issuer's discovery document.
func (i *Issuer) Discovery() Discovery {
	d := Discovery{
		Issuer: i.Issuers[0], JWKSURI: i.JWKSURI,
		ResponseTypes: []string{"id_token"}, SubjectTypes: []string{"public"},
	}
	for _, alg := range i.algorithms {
		d.Algorithms = append(d.Algorithms, string(alg))
	}
	return d
}

// publicJWK returns a key with its ID: the digest of its DER form, as in kube-apiserver.
func publicJWK(key crypto.PublicKey) (jose.JSONWebKey, error) {
	alg, err := algorithmOf(key)
	if err != nil {
		return jose.JSONWebKey{}, err
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return jose.JSONWebKey{}, fmt.Errorf("authn: service account key: %w", err)
	}
	sum := sha256.Sum256(der)
	return jose.JSONWebKey{Key: key, KeyID: base64.RawURLEncoding.EncodeToString(sum[:]), Algorithm: string(alg),
		Use: "sig"}, nil
}

func algorithmOf(key crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256():
			return jose.ES256, nil
		case elliptic.P384():
			return jose.ES384, nil
		case elliptic.P521():
			return jose.ES512, nil
		}
	}
	return "", fmt.Errorf("authn: service account key: %T is neither RSA nor ECDSA on a NIST curve", key)
}

// ReadKeys reads the SigningKey from a file, unless that is "", and further Keys from others. Errors name the flags
// of kube-apiserver for these files.
func (o *IssuerOptions) ReadKeys(signing string, others []string) (err error) {
	if signing != "" {
		if o.SigningKey, err = ReadSigningKey(signing); err != nil {
			return fmt.Errorf("--service-account-signing-key-file: %w", err)
		}
	}
	for _, file := range others {
		keys, err := ReadPublicKeys(file)
		if err != nil {
			return fmt.Errorf("--service-account-key-file: %w", err)
		}
		o.Keys = append(o.Keys, keys...)
	}
	return nil
}

// ReadSigningKey reads an ECDSA or RSA private key from a PEM file.
func ReadSigningKey(file string) (crypto.Signer, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading a signing key: %w", err)
	}
	if key, ok := privateKey(content); ok {
		return key, nil
	}
	return nil, fmt.Errorf("%s has no ECDSA or RSA private key", file)
}

func privateKey(pem []byte) (crypto.Signer, bool) {
	key, err := keyutil.ParsePrivateKeyPEM(pem)
	signer, ok := key.(crypto.Signer)
	return signer, err == nil && ok
}

// ReadPublicKeys reads the public keys of a PEM file: keys, certificates, and the public
// halves of private keys.
func ReadPublicKeys(file string) ([]crypto.PublicKey, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading public keys: %w", err)
	}
	var keys []crypto.PublicKey
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if key, err := x509.ParsePKIXPublicKey(block.Bytes); err == nil {
			keys = append(keys, key)
		} else if key, err := x509.ParsePKCS1PublicKey(block.Bytes); err == nil {
			keys = append(keys, key)
		} else if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			keys = append(keys, cert.PublicKey)
		} else if key, ok := privateKey(pem.EncodeToMemory(block)); ok {
			keys = append(keys, key.Public())
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no public key", file)
	}
	return keys, nil
}
