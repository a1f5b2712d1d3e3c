package apiserver

import (
	"net/http"

	"github.com/coxswain-dev/coxswain/apiserver/aggregation"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// What Options.Middleware may ask about the requests that it sees.

// Attributes reads a request's verb and object from its path, before it is known whether there is such a kind; for
// other paths than those of resources the path itself is set. A malformed path has attributes as far as it can be read.
func Attributes(r *http.Request) authz.Attributes {
	a, _ := aggregation.Attributes(r, authn.UserFrom(r.Context()))
	return a
}
