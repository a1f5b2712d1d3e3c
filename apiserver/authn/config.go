package authn

import (
	"fmt"
	"os"

	"github.com/coxswain-dev/coxswain/apiserver/configfile"
)

// Configuration is an AuthenticationConfiguration of apiserver.config.k8s.io.
// https://kubernetes.io/docs/reference/config-api/apiserver-config.v1/#apiserver-k8s-io-v1-AuthenticationConfiguration
type Configuration struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"`
	JWT        []JWTAuthenticator `json:"jwt"`
	Anonymous  *AnonymousConfig   `json:"anonymous"`
}

// AnonymousConfig selects the requests without a credential that are accepted as Anonymous's.
type AnonymousConfig struct {
	Enabled bool `json:"enabled"`
	// Conditions list the paths of these requests. One of them must equal the request's path; an empty list allows
	// all paths.
	Conditions []AnonymousCondition `json:"conditions"`
}

// AnonymousCondition is one path.
type AnonymousCondition struct {
	Path string `json:"path"`
}

// Paths returns the paths of the conditions.
func (c AnonymousConfig) Paths() []string {
	paths := make([]string, len(c.Conditions))
	for i, condition := range c.Conditions {
		paths[i] = condition.Path
	}
	return paths
}

// JWTAuthenticator is an issuer of JSON web tokens, with the mapping of their claims to a user.
type JWTAuthenticator struct {
	Issuer               JWTIssuer             `json:"issuer"`
	ClaimValidationRules []ClaimValidationRule `json:"claimValidationRules"`
	ClaimMappings        ClaimMappings         `json:"claimMappings"`
	UserValidationRules  []UserValidationRule  `json:"userValidationRules"`
}

// JWTIssuer is the provider that signs the tokens.
type JWTIssuer struct {
	// URL must be https. It is also the claim iss of the issuer's tokens.
	URL string `json:"url"`
	// DiscoveryURL is the location of the provider's configuration, if that is not below URL.
	DiscoveryURL string `json:"discoveryURL"`
	// CertificateAuthority is the CAs of the provider's certificate in PEM; "" means the system's.
	CertificateAuthority string `json:"certificateAuthority"`
	// Audiences are accepted audiences; a token must name one of them.
	Audiences           []string `json:"audiences"`
	AudienceMatchPolicy string   `json:"audienceMatchPolicy"`
	EgressSelectorType  string   `json:"egressSelectorType"`
}

// ClaimValidationRule is a claim that must have a value, or an expression over claims that must be true.
type ClaimValidationRule struct {
	Claim         string `json:"claim"`
	RequiredValue string `json:"requiredValue"`
	Expression    string `json:"expression"`
	Message       string `json:"message"`
}

// ClaimMappings make a user from claims.
type ClaimMappings struct {
	Username PrefixedClaimOrExpression `json:"username"`
	Groups   PrefixedClaimOrExpression `json:"groups"`
	UID      ClaimOrExpression         `json:"uid"`
	Extra    []ExtraMapping            `json:"extra"`
}

// PrefixedClaimOrExpression is a claim with a prefix, which must be set, or an expression over claims.
type PrefixedClaimOrExpression struct {
	Claim      string  `json:"claim"`
	Prefix     *string `json:"prefix"`
	Expression string  `json:"expression"`
}

// ClaimOrExpression is a claim or an expression over claims.
type ClaimOrExpression struct {
	Claim      string `json:"claim"`
	Expression string `json:"expression"`
}

// ExtraMapping is an expression over claims that gives one of the user's extra attributes.
type ExtraMapping struct {
	Key             string `json:"key"`
	ValueExpression string `json:"valueExpression"`
}

// UserValidationRule is an expression over user that must be true.
type UserValidationRule struct {
	Expression string `json:"expression"`
	Message    string `json:"message"`
}

// configVersions are the versions of AuthenticationConfiguration. Its fields are the same in all of them.
var configVersions = []string{"v1", "v1beta1", "v1alpha1"}

// ReadConfig reads the file of --authentication-config. New validates the content.
func ReadConfig(path string) (*Configuration, []byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("authentication configuration: %w", err)
	}
	config, err := ParseConfig(content)
	if err != nil {
		return nil, nil, fmt.Errorf("authentication configuration %s: %w", path, err)
	}
	return config, content, nil
}

// ParseConfig decodes an AuthenticationConfiguration.
func ParseConfig(content []byte) (*Configuration, error) {
	c := &Configuration{}
	return c, configfile.Decode(content, "AuthenticationConfiguration", configVersions, c)
}
