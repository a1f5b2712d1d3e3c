package aggregation

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/query"
)

// What paths below /apis/GROUP/VERSION and /api/VERSION mean. This server does not know the kinds of others, so that a
// request's verb and resource are read from its path alone (k8s.io/apiserver/pkg/endpoints/request.RequestInfo).

// methodVerbs are the verbs of methods. Others have none, and nobody but an administrator has a right to that.
var methodVerbs = map[string]string{http.MethodGet: "get", http.MethodHead: "get", http.MethodPost: "create",
	http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}

// streamed are the subresources that are connected to for as long as the client likes.
var streamed = []string{"attach", "exec", "log", "portforward", "proxy"}

// namespaceParts are below a namespace, and are no resources of it.
var namespaceParts = []string{"status", "finalize"}

// maxParts is how many parts of a path say what it is about: apis, a group, a version, watch or proxy, namespaces, a
// namespace, a resource, a name and a subresource.
const maxParts = 9

// appendParts appends the first parts of a path. The core group has the name "".
func appendParts(parts []string, path string) []string {
	for more := true; more && len(parts) < maxParts; {
		var part string
		part, path, more = strings.Cut(path, "/")
		if parts = append(parts, part); len(parts) == 1 && part == "api" {
			parts = append(parts, "")
		}
	}
	return parts
}

// Attributes are those by which a request for another server is authorized. a.Path is set for /apis/GROUP/VERSION
// itself, and for paths that are not below one.
func Attributes(r *http.Request, user *authn.User) (authz.Attributes, error) {
	var room [maxParts]string
	parts := appendParts(room[:0], strings.Trim(r.URL.Path, "/"))
	if len(parts) < 4 || parts[0] != "api" && parts[0] != "apis" { // apis, group, version
		verb := strings.ToLower(r.Method)
		if verb == "head" {
			verb = "get" // of which it tells a part
		}
		return authz.Attributes{User: user, Verb: verb, Path: r.URL.Path}, nil
	}
	a := authz.Attributes{User: user, Group: parts[1], Version: parts[2], Verb: methodVerbs[r.Method]}
	parts = parts[3:]
	if parts[0] == "watch" || parts[0] == "proxy" {
		if len(parts) < 2 {
			return a, fmt.Errorf("unable to determine kind and namespace from url, %s", r.URL.Path)
		}
		a.Verb, parts = parts[0], parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 1 {
		a.Namespace = parts[1]
		if len(parts) > 2 && !slices.Contains(namespaceParts, parts[2]) {
			parts = parts[2:]
		}
	}
	a.Resource = parts[0]
	if len(parts) > 1 {
		a.Name = parts[1]
	}
	if len(parts) > 2 && a.Verb != "proxy" {
		a.Subresource = parts[2]
	}
	if a.Name != "" {
		return a, nil
	}
	switch {
	case a.Verb == "get" && strings.Contains(r.URL.RawQuery, "watch") && query.Flag(r.URL.Query(), "watch"):
		a.Verb = "watch"
	case a.Verb == "get":
		a.Verb = "list"
	case a.Verb == "delete":
		a.Verb = "deletecollection"
	}
	return a, nil
}

// Streams reports whether a request with these attributes may go on for as long as the client likes.
func Streams(a *authz.Attributes) bool { return a.Verb == "watch" || Connects(a) }

// Connects reports whether it is a connection to something that the other server has.
func Connects(a *authz.Attributes) bool {
	return a.Verb == "proxy" || slices.Contains(streamed, a.Subresource)
}
