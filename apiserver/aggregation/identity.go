package aggregation

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// These headers name the user to servers that trust the client certificate of this one.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#authenticating-proxy
const (
	userHeader  = "X-Remote-User"
	uidHeader   = "X-Remote-Uid"
	groupHeader = "X-Remote-Group"
	extraHeader = "X-Remote-Extra-"
)

// claims lists the prefixes of the headers that let a client act as another user. They are compared
// case-insensitively and with underscores as hyphens, because some servers do not distinguish these.
var claims = []string{"x-remote-", "impersonate-", "authorization"}

// disclaim removes the headers that claim an identity.
func disclaim(h http.Header) {
	for name := range h {
		plain := strings.ReplaceAll(strings.ToLower(name), "_", "-")
		for _, claim := range claims {
			if strings.HasPrefix(plain, claim) {
				delete(h, name)
			}
		}
	}
}

// identity returns the headers that describe the user.
func identity(user *authn.User) (http.Header, error) {
	h := http.Header{userHeader: {user.Name}}
	if user.UID != "" {
		h[uidHeader] = []string{user.UID}
	}
	if len(user.Groups) > 0 {
		h[groupHeader] = user.Groups
	}
	for key, values := range user.Extra {
		name := http.CanonicalHeaderKey(extraHeader + escapeKey(key))
		h[name] = append(h[name], values...)
	}
	for _, values := range h {
		for _, v := range values {
			if err := sound(v); err != nil {
				return nil, err
			}
		}
	}
	return h, nil
}

// sound returns an error if a value would arrive changed. Whitespace around a header's value is stripped, for
// example, which would turn the user into a different one.
func sound(value string) error {
	if strings.Trim(value, " \t") != value || strings.ContainsAny(value, "\r\n\x00") {
		return fmt.Errorf("the user's name, a group or an extra value cannot be sent in a header: %q", value)
	}
	return nil
}

// escapeKey makes an extra key usable in a header's name, by percent-encoding the characters that are invalid
// there.
func escapeKey(key string) string {
	var b strings.Builder
	for i := range len(key) {
		if c := key[i]; isToken(c) && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// isToken reports whether a header's name may contain c (RFC 9110, section 5.6.2).
func isToken(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
