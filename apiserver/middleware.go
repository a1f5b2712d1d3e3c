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

// Written is the name of the object that a request has written or tried to write, "" if that is not known, and whether
// the write left the object as it was, which a dry run is not counted as. w is the ResponseWriter by which the request
// was answered.
func Written(w http.ResponseWriter) (name string, unchanged bool) {
	r := observed(w).request
	if r == nil || r.write == nil {
		return "", false
	}
	return r.write.name, r.write.unchanged && !r.write.isDryRun()
}
