package apiserver

import (
	"net/http"

	"github.com/coxswain-dev/coxswain/apiserver/aggregation"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// Attributes returns the verb and the object of a request for Options.Middleware. They are read from the path alone, so
// that the kind need not exist. For paths that are not resources, Path is set. The attributes of a malformed path are
// incomplete.
func Attributes(r *http.Request) authz.Attributes {
	a, _ := aggregation.Attributes(r, authn.UserFrom(r.Context()))
	return a
}
