package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestImpersonate_ClientGo(t *testing.T) {
	t.Parallel()
	s := start(t)
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "jane", UID: "42", Groups: []string{"devs", "ops"},
		Extra: map[string][]string{"example.com/Scope": {"a", "b"}},
	}
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, authenticationv1.UserInfo{
		Username: "jane", UID: "42", Groups: []string{"devs", "ops", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"example.com/scope": {"a", "b"}},
	}, review.Status.UserInfo)
}

func TestImpersonate_GroupsAreAsAuthenticationWouldGive(t *testing.T) {
	t.Parallel()
	s := start(t)
	review := m{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
	as := func(headers ...string) *answer { return s.do(http.MethodPost, whoAmI, review, headers...) }
	groups := func(headers ...string) any {
		return as(headers...).ok(http.StatusCreated).at("status", "userInfo", "groups")
	}

	require.Equal(t, []any{"system:authenticated"}, groups("Impersonate-User", "jane"))
	require.Equal(t, []any{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"},
		groups("Impersonate-User", "system:serviceaccount:ns:robot"))
	require.Equal(t, []any{"only", "system:authenticated"},
		groups("Impersonate-User", "system:serviceaccount:ns:robot", "Impersonate-Group", "only"))
	as("Impersonate-User", "system:anonymous").refused(http.StatusForbidden, metav1.StatusReasonForbidden,
		`User "system:anonymous" cannot create`)
	as("Impersonate-User", "jane", "Impersonate-Group", "system:unauthenticated").
		refused(http.StatusForbidden, metav1.StatusReasonForbidden, `User "jane" cannot create`)
	as("Impersonate-Group", "system:masters").refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
		"without impersonating a user")
	anonymous := s.bearing("")
	anonymous.get("/version", "Impersonate-User", "jane").refused(http.StatusForbidden, metav1.StatusReasonForbidden,
		`User "system:anonymous" cannot impersonate`)
}
