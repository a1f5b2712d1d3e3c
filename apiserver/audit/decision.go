package audit

import (
	"errors"
	"net/http"
	"strings"

	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// ErrStore is the answer to a request that Receive has not recorded, in kube-apiserver's words.
var ErrStore = errors.New("failed to store audit event")

// Authorized annotates a request with the decision of the authorizers, as kube-apiserver does. err is an authorizer's
// error, nil for none. A nil Request may be used.
func (r *Request) Authorized(decision authz.Decision, reason string, err error) {
	const key = "authorization.k8s.io/"
	if decision == authz.Allow {
		r.Annotate(key+"decision", "allow")
	} else {
		r.Annotate(key+"decision", "forbid")
		if err != nil {
			reason = "internal error"
		}
	}
	r.Annotate(key+"reason", reason)
}

// Attempted names the credentials of a request whose authentication has failed.
func Attempted(r *http.Request) string {
	var methods []string
	scheme, _, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if scheme = strings.ToLower(scheme); scheme == "basic" || scheme == "bearer" {
		methods = append(methods, scheme)
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		methods = append(methods, "x509")
	}
	if len(methods) == 0 {
		return "no credentials provided"
	}
	return "attempted: " + strings.Join(methods, ", ")
}
