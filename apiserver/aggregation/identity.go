package aggregation

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// The headers by which a request says whose it is, to servers that trust the certificate it comes with.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#authenticating-proxy
const (
	userHeader  = "X-Remote-User"
	uidHeader   = "X-Remote-Uid"
	groupHeader = "X-Remote-Group"
	extraHeader = "X-Remote-Extra-"
)

// claims are the beginnings of names of headers by which a client could act as somebody. They are compared without
// regard to case and with underscores as hyphens: some servers do not tell these apart.
var claims = []string{"x-remote-", "impersonate-", "authorization"}

// disclaim removes whatever a client says about itself.
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

// identity is the headers that say who the user is.
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

// sound reports why a value would not arrive as it is: spaces around it are not part of a header's value, so that the
// user would become another one.
func sound(value string) error {
	if strings.Trim(value, " \t") != value || strings.ContainsAny(value, "\r\n\x00") {
		return fmt.Errorf("the user's name, a group or an extra value cannot be sent in a header: %q", value)
	}
	return nil
}

// escapeKey writes an extra key as part of a header's name: percent-encoded where that has no such characters.
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

// isToken reports whether names of headers may have the character (RFC 9110, 5.6.2).
func isToken(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
