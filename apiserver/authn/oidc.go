package authn

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/coreos/go-oidc/v3/oidc"
)

// OIDCOptions select one OpenID provider, as the flags --oidc-* do.
type OIDCOptions struct {
	// IssuerURL must be https. ClientID is the audience that tokens must name.
	IssuerURL, ClientID string
	// UsernameClaim is "sub" by default. UsernamePrefix is by default the issuer and "#", or none if the claim is
	// "email"; "-" is none.
	UsernameClaim, UsernamePrefix string
	// GroupsClaim, if not "", names a claim that is a string or a list of strings.
	GroupsClaim, GroupsPrefix string
	// RequiredClaims must be in the token with these values.
	RequiredClaims map[string]string
	// CAFile contains the CAs of the issuer's certificate; "" means the system's.
	CAFile string
	// SigningAlgs are the accepted algorithms: RS256 by default. They must be asymmetric.
	SigningAlgs []string
}

// Config returns a configuration with this issuer.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#using-flags
func (o OIDCOptions) Config() (c ConfigOptions, err error) {
	if o.IssuerURL == "" || o.ClientID == "" {
		return c, errors.New("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags " +
			"are set")
	}
	if o.UsernameClaim == "" {
		o.UsernameClaim = "sub"
	}
	switch {
	case o.UsernamePrefix == "-":
		o.UsernamePrefix = ""
	case o.UsernamePrefix == "" && o.UsernameClaim != "email":
		o.UsernamePrefix = o.IssuerURL + "#"
	}
	issuer := JWTAuthenticator{
		Issuer: JWTIssuer{URL: o.IssuerURL, Audiences: []string{o.ClientID}},
		ClaimMappings: ClaimMappings{
			Username: PrefixedClaimOrExpression{Claim: o.UsernameClaim, Prefix: &o.UsernamePrefix},
		},
	}
	if o.GroupsClaim != "" {
		issuer.ClaimMappings.Groups = PrefixedClaimOrExpression{Claim: o.GroupsClaim, Prefix: &o.GroupsPrefix}
	}
	for name, value := range o.RequiredClaims {
		issuer.ClaimValidationRules = append(issuer.ClaimValidationRules,
			ClaimValidationRule{Claim: name, RequiredValue: value})
	}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return c, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		issuer.Issuer.CertificateAuthority = string(pem)
	}
	c = ConfigOptions{SigningAlgs: o.SigningAlgs, Configuration: &Configuration{JWT: []JWTAuthenticator{issuer}}}
	if len(c.SigningAlgs) == 0 {
		c.SigningAlgs = []string{oidc.RS256}
	}
	for _, alg := range c.SigningAlgs {
		if !slices.Contains(signingAlgs, alg) {
			return c, fmt.Errorf("--oidc-signing-algs: %q is none of %s", alg, strings.Join(signingAlgs, ", "))
		}
	}
	return c, nil
}
