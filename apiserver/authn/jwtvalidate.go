package authn

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxIssuers limits the issuers of a configuration.
const maxIssuers = 64

// validate returns the errors in a configuration, with kube-apiserver's texts. ours are the issuers of service
// account tokens; no other issuer may have their names. It also returns the compiled expressions of each issuer.
func (c *Configuration) validate(ours []string) ([]*claimExpressions, field.ErrorList) {
	var errs field.ErrorList
	root := field.NewPath("jwt")
	if len(c.JWT) > maxIssuers {
		return nil, field.ErrorList{field.TooMany(root, len(c.JWT), maxIssuers)}
	}
	compiled := make([]*claimExpressions, len(c.JWT))
	issuers, discovery := sets.New[string](), sets.New[string]()
	for i := range c.JWT {
		a, path := &c.JWT[i], root.Index(i)
		errs = append(errs, a.Issuer.validate(ours, path.Child("issuer"))...)
		x, faults := a.compile(path)
		compiled[i], errs = x, append(errs, faults...)
		if issuers.Has(a.Issuer.URL) {
			errs = append(errs, field.Duplicate(path.Child("issuer", "url"), a.Issuer.URL))
		}
		issuers.Insert(a.Issuer.URL)
		if u := a.Issuer.DiscoveryURL; u != "" {
			if discovery.Has(u) {
				errs = append(errs, field.Duplicate(path.Child("issuer", "discoveryURL"), u))
			}
			discovery.Insert(u)
		}
	}
	if a := c.Anonymous; a != nil && !a.Enabled && len(a.Conditions) > 0 {
		errs = append(errs, field.Invalid(field.NewPath("anonymous", "conditions"), a.Conditions,
			"enabled should be set to true when conditions are defined"))
	}
	return compiled, errs
}

func (i *JWTIssuer) validate(ours []string, path *field.Path) (errs field.ErrorList) {
	if i.URL == "" {
		errs = append(errs, field.Required(path.Child("url"), ""))
	} else {
		errs = append(errs, validateURL(i.URL, ours, path.Child("url"))...)
	}
	if u := i.DiscoveryURL; u != "" {
		if i.URL != "" && strings.TrimRight(i.URL, "/") == strings.TrimRight(u, "/") {
			errs = append(errs, field.Invalid(path.Child("discoveryURL"), u, "discoveryURL must be different from URL"))
		}
		errs = append(errs, validateURL(u, nil, path.Child("discoveryURL"))...)
	}
	errs = append(errs, i.validateAudiences(path)...)
	if pem := i.CertificateAuthority; pem != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(pem)) {
		errs = append(errs, field.Invalid(path.Child("certificateAuthority"), "<omitted>",
			"data does not contain any valid RSA or ECDSA certificates"))
	}
	if i.EgressSelectorType != "" {
		errs = append(errs, field.Invalid(path.Child("egressSelectorType"), i.EgressSelectorType,
			"egress selector is not supported: this server connects without a proxy"))
	}
	return errs
}

func validateURL(text string, ours []string, path *field.Path) (errs field.ErrorList) {
	invalid := func(words string) { errs = append(errs, field.Invalid(path, text, words)) }
	if slices.Contains(ours, text) {
		invalid(fmt.Sprintf("URL must not overlap with disallowed issuers: %s", sets.List(sets.New(ours...))))
	}
	u, err := url.Parse(text)
	if err != nil {
		invalid(err.Error())
		return errs
	}
	if u.Scheme != "https" {
		invalid("URL scheme must be https")
	} else if u.Host == "" {
		invalid("URL must have a host")
	}
	if u.User != nil {
		invalid("URL must not contain a username or password")
	}
	if u.RawQuery != "" {
		invalid("URL must not contain a query")
	}
	if u.Fragment != "" {
		invalid("URL must not contain a fragment")
	}
	return errs
}

func (i *JWTIssuer) validateAudiences(path *field.Path) (errs field.ErrorList) {
	path, policy := path.Child("audiences"), path.Child("audienceMatchPolicy")
	if len(i.Audiences) == 0 {
		return field.ErrorList{field.Required(path, fmt.Sprintf("at least one %s is required", path))}
	}
	for n, audience := range i.Audiences {
		if audience == "" {
			errs = append(errs, field.Required(path.Index(n), ""))
		}
		if slices.Contains(i.Audiences[:n], audience) {
			errs = append(errs, field.Duplicate(path.Index(n), audience))
		}
	}
	switch matchAny := i.AudienceMatchPolicy == "MatchAny"; {
	case len(i.Audiences) > 1 && !matchAny:
		errs = append(errs, field.Invalid(policy, i.AudienceMatchPolicy,
			"audienceMatchPolicy must be MatchAny for multiple audiences"))
	case i.AudienceMatchPolicy != "" && !matchAny:
		errs = append(errs, field.Invalid(policy, i.AudienceMatchPolicy,
			"audienceMatchPolicy must be empty or MatchAny for single audience"))
	}
	return errs
}

// validateExtraKey checks that a key has a domain, and not one of Kubernetes'.
func validateExtraKey(key string, path *field.Path) (errs field.ErrorList) {
	errs = append(errs, validation.IsDomainPrefixedPath(path, key)...)
	if key != strings.ToLower(key) {
		errs = append(errs, field.Invalid(path, key, "must be lowercase"))
	}
	domain, _, _ := strings.Cut(key, "/")
	for _, reserved := range []string{"kubernetes.io", "k8s.io"} {
		if domain == reserved || strings.HasSuffix(domain, "."+reserved) {
			errs = append(errs, field.Invalid(path, key,
				"k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use"))
		}
	}
	return errs
}
