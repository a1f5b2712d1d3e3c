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

// The server does not know the kinds of other servers, so it derives the verb and resource of a request below
// /apis/GROUP/VERSION and /api/VERSION from the path alone, as k8s.io/apiserver/pkg/endpoints/request.RequestInfo
// does.

// methodVerbs maps HTTP methods to verbs. Other methods have no verb, so only an administrator is authorized to use
// them.
var methodVerbs = map[string]string{http.MethodGet: "get", http.MethodHead: "get", http.MethodPost: "create",
	http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}

// streamed lists the subresources with requests that last as long as the client wants.
var streamed = []string{"attach", "exec", "log", "portforward", "proxy"}

// namespaceParts lists the path segments below a namespace that are subresources of the namespace rather than
// resources in it.
var namespaceParts = []string{"status", "finalize"}

// maxParts is the number of path segments that can matter: apis, a group, a version, watch or proxy, namespaces, a
// namespace, a resource, a name and a subresource.
const maxParts = 9

// appendParts appends the first maxParts segments of the path. It inserts "" as the core group's name.
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

// Attributes returns the attributes for the authorization of a request to another server. It sets only Path for
// /apis/GROUP/VERSION itself and for paths outside of one.
func Attributes(r *http.Request, user *authn.User) (authz.Attributes, error) {
	var room [maxParts]string
	parts := appendParts(room[:0], strings.Trim(r.URL.Path, "/"))
	if len(parts) < 4 || parts[0] != "api" && parts[0] != "apis" { // apis, group, version
		verb := strings.ToLower(r.Method)
		if verb == "head" {
			verb = "get" // HEAD returns part of what GET does
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

// Streams reports whether a request with these attributes may last as long as the client wants.
func Streams(a *authz.Attributes) bool { return a.Verb == "watch" || Connects(a) }

// Connects reports whether the request opens a connection to something behind the other server.
func Connects(a *authz.Attributes) bool {
	return a.Verb == "proxy" || slices.Contains(streamed, a.Subresource)
}
