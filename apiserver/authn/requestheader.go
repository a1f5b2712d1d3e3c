package authn

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"
)

// RequestHeader authenticates requests of front proxies: servers that have authenticated the user themselves and
// name it in headers. A proxy is trusted only on a connection with a client certificate that the CAs have signed;
// otherwise the headers are ignored.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#authenticating-proxy
type RequestHeader struct {
	// CAs sign the certificates of proxies (--requestheader-client-ca-file). They should not sign others: a
	// certificate with an allowed name can act as any user.
	CAs CAs
	// AllowedNames are the common names of these certificates (--requestheader-allowed-names); an empty list allows
	// all.
	AllowedNames []string
	Headers      IdentityHeaders
}

// IdentityHeaders are the names of the headers with the user of a request. Of Users and UIDs, the first header with
// a value counts; of Groups and ExtraPrefixes, all values of all headers.
type IdentityHeaders struct {
	Users         []string // --requestheader-username-headers
	UIDs          []string // --requestheader-uid-headers
	Groups        []string // --requestheader-group-headers
	ExtraPrefixes []string // --requestheader-extra-headers-prefix
}

// StandardIdentityHeaders returns the headers that Kubernetes' own proxies set.
func StandardIdentityHeaders() IdentityHeaders {
	return IdentityHeaders{
		Users: []string{"X-Remote-User"}, UIDs: []string{"X-Remote-Uid"},
		Groups: []string{"X-Remote-Group"}, ExtraPrefixes: []string{"X-Remote-Extra-"},
	}
}

// frontProxies authenticates by RequestHeader. The clock decides whether a proxy's certificate is valid.
type frontProxies struct {
	*RequestHeader
	clock clock.PassiveClock
}

// Authenticate implements Authenticator. A request that names no user is not a proxy's, independently of its
// certificate. The chain is verified once for each connection and set of CAs.
func (p frontProxies) Authenticate(r *http.Request) (*User, bool, error) {
	name := first(r.Header, p.Headers.Users)
	if name == "" || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	_, err := connectionOf(r).proxy.current(p.CAs.Pool(), p.clock.Now(), r.TLS.PeerCertificates, proxyOf)
	if err != nil {
		return nil, false, err
	}
	subject := r.TLS.PeerCertificates[0].Subject.CommonName
	if len(p.AllowedNames) > 0 && !slices.Contains(p.AllowedNames, subject) {
		return nil, false, fmt.Errorf("x509: subject with cn=%s is not in the allowed list", subject)
	}
	user := &User{
		Name: name, UID: first(r.Header, p.Headers.UIDs),
		Groups: values(r.Header, p.Headers.Groups), Extra: extra(r.Header, p.Headers.ExtraPrefixes),
	}
	if name == Anonymous {
		return user, true, nil
	}
	return authenticated(user), true, nil
}

// proxyOf verifies a proxy's certificate. It returns no user: each request names its own.
func proxyOf(cas *x509.CertPool, now time.Time, chain []*x509.Certificate) (*User, error) {
	if verifyChain(cas, now, chain) != nil {
		return nil, errBadProxy
	}
	return nil, nil
}

// first returns the first value of the first header that has one.
func first(h http.Header, names []string) string {
	for _, name := range names {
		if value := h.Get(name); value != "" {
			return value
		}
	}
	return ""
}

func values(h http.Header, names []string) []string {
	var all []string
	for _, name := range names {
		for _, value := range h.Values(name) {
			if value != "" {
				all = append(all, value)
			}
		}
	}
	return all
}

// extra collects the headers with the prefixes. The rest of a name is the key in lower case. Characters that a
// header's name cannot contain are percent-encoded.
func extra(h http.Header, prefixes []string) map[string][]string {
	var all map[string][]string
	for _, prefix := range prefixes {
		var names []string
		for name := range h {
			if hasPrefixFold(name, prefix) {
				names = append(names, name)
			}
		}
		slices.Sort(names) // two may decode to the same key
		for _, name := range names {
			key := strings.ToLower(name[len(prefix):])
			if decoded, err := url.PathUnescape(key); err == nil {
				key = decoded
			}
			if all == nil {
				all = map[string][]string{}
			}
			all[key] = append(all[key], h[name]...)
		}
	}
	return all
}

// remove removes the headers from a request, so that the next server that gets it does not take them for a
// proxy's.
func (i *IdentityHeaders) remove(h http.Header) {
	for name := range h {
		if i.has(name) {
			delete(h, name)
		}
	}
}

func (i *IdentityHeaders) has(name string) bool {
	for _, names := range [...][]string{i.Users, i.UIDs, i.Groups} {
		for _, header := range names {
			if len(header) == len(name) && strings.EqualFold(header, name) {
				return true
			}
		}
	}
	return slices.ContainsFunc(i.ExtraPrefixes, func(prefix string) bool { return hasPrefixFold(name, prefix) })
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// with adds the headers of another set, each of them once.
func (i IdentityHeaders) with(other IdentityHeaders) IdentityHeaders {
	union := func(a, b []string) []string {
		all := slices.Concat(a, b)
		slices.Sort(all)
		return slices.Compact(all)
	}
	return IdentityHeaders{Users: union(i.Users, other.Users), UIDs: union(i.UIDs, other.UIDs),
		Groups: union(i.Groups, other.Groups), ExtraPrefixes: union(i.ExtraPrefixes, other.ExtraPrefixes)}
}
