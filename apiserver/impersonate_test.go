package apiserver_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver"
)

// asked is an authorizer that notes what it is asked by impersonators, and refuses one thing.
type asked struct {
	mu      sync.Mutex
	parts   []string
	refuses string
}

func (a *asked) Authorize(_ context.Context, on apiserver.Attributes) (bool, string, error) {
	if on.Verb != "impersonate" {
		return on.User.Authenticated(), "", nil
	}
	part := fmt.Sprintf("%s/%s/%s %s/%s", on.Group, on.Resource, on.Subresource, on.Namespace, on.Name)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.parts = append(a.parts, part)
	return part != a.refuses, "", nil
}

func (a *asked) reset(refuses string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	parts := a.parts
	a.parts, a.refuses = nil, refuses
	slices.Sort(parts)
	return parts
}

func TestImpersonate_EachPartIsAskedAbout(t *testing.T) {
	t.Parallel()
	authorizer := &asked{}
	s := assemble(t, api.Builtin(), apiserver.Options{Authorizer: authorizer})
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "jane", UID: "42", Groups: []string{"devs", "ops"},
		Extra: map[string][]string{"example.com/Scope": {"a", "b"}},
	}
	client := kubernetes.NewForConfigOrDie(config)
	whoami := func() (*authenticationv1.SelfSubjectReview, error) {
		return client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	}
	review, err := whoami()
	require.NoError(t, err)
	require.Equal(t, authenticationv1.UserInfo{
		Username: "jane", UID: "42", Groups: []string{"devs", "ops", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"example.com/scope": {"a", "b"}},
	}, review.Status.UserInfo)
	parts := authorizer.reset("")
	require.Equal(t, []string{
		"/groups/ /devs", "/groups/ /ops", "/users/ /jane",
		"authentication.k8s.io/uids/ /42",
		"authentication.k8s.io/userextras/example.com/scope /a", "authentication.k8s.io/userextras/example.com/scope /b",
	}, parts)
	for _, part := range parts {
		authorizer.reset(part)
		_, err := whoami()
		require.ErrorContains(t, err, "cannot impersonate resource", "without %s", part)
	}
}

func TestImpersonate_GroupsAreAsAuthenticationWouldGive(t *testing.T) {
	t.Parallel()
	authorizer := &asked{}
	s := assemble(t, api.Builtin(), apiserver.Options{Authorizer: authorizer})
	review := m{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
	as := func(headers ...string) *answer { return s.do(http.MethodPost, whoAmI, review, headers...) }
	groups := func(headers ...string) any {
		return as(headers...).ok(http.StatusCreated).at("status", "userInfo", "groups")
	}

	require.Equal(t, []any{"system:authenticated"}, groups("Impersonate-User", "jane"))
	authorizer.reset("")
	require.Equal(t, []any{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"},
		groups("Impersonate-User", "system:serviceaccount:ns:robot"))
	require.Equal(t, []string{"/serviceaccounts/ ns/robot"}, authorizer.reset(""))
	require.Equal(t, []any{"only", "system:authenticated"},
		groups("Impersonate-User", "system:serviceaccount:ns:robot", "Impersonate-Group", "only"))
	as("Impersonate-User", "system:anonymous").refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	as("Impersonate-User", "jane", "Impersonate-Group", "system:unauthenticated").
		refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	as("Impersonate-Group", "system:masters").refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "without impersonating a user")
}
