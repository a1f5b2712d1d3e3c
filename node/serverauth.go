package node

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/internal/client/delegatedauth"
)

// guard decides which users may use the agent's endpoint, like a kubelet with authentication by client certificates and
// webhook, authorization by webhook, and without anonymous access.
type guard struct{ delegatedauth.Guard }

// authenticate returns the user of a request; nil if the user is unknown.
func (g *guard) authenticate(r *http.Request, client kubernetes.Interface) (*authenticationv1.UserInfo, error) {
	return g.Authenticate(r, client)
}

// subresources returns the subresources of a Node that give access to a path, the narrowest first.
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/
func subresources(path string) []string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "stats":
		return []string{"stats"}
	case "metrics", "checkpoint":
		return []string{first}
	case "logs":
		return []string{"log"}
	case "healthz", "pods", "configz", "statusz":
		return []string{first, "proxy"}
	case "runningpods":
		return []string{"pods", "proxy"}
	}
	return []string{"proxy"}
}

var verbs = map[string]string{
	http.MethodPost: "create", http.MethodGet: "get", http.MethodHead: "get",
	http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// authorize returns the reason why a user may not make a request to a node; "" if it may.
func (g *guard) authorize(ctx context.Context, client kubernetes.Interface, user *authenticationv1.UserInfo, node,
	method, path string) (denied string, err error) {
	for _, subresource := range subresources(path) {
		a := &authorizationv1.ResourceAttributes{
			Verb: verbs[method], Version: "v1", Resource: "nodes", Subresource: subresource, Name: node,
		}
		allowed, err := g.Allowed(ctx, client, user, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: a})
		if err != nil || allowed {
			return "", err
		}
		denied = fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=[%s])", user.Username, a.Verb,
			a.Subresource)
	}
	return denied, nil
}
