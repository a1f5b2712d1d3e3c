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

const selfSubjectReviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

func TestReview_SelfSubjectReviewReturnsTheCallerInEveryFormat(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, media := range []string{"application/json", protobuf} {
		config := rest.CopyConfig(s.config)
		config.ContentType, config.AcceptContentTypes = media, media
		client, err := kubernetes.NewForConfigAndClient(config, s.http)
		require.NoError(t, err)
		review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		require.NoError(t, err, media)
		require.Equal(t, authenticationv1.UserInfo{Username: "kubernetes-admin",
			Groups: []string{"system:masters", "system:authenticated"}}, review.Status.UserInfo)
		require.False(t, review.CreationTimestamp.IsZero())
	}
	body := m{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
	post := func(headers ...string) *answer {
		return s.do(http.MethodPost, selfSubjectReviews, body, headers...).ok(http.StatusCreated)
	}
	require.Contains(t, string(post("Accept", asYAML).body), "username: kubernetes-admin")
	require.Equal(t, "PartialObjectMetadata", post("Accept", asPartial).at("kind"))
}

func TestReview_IsCreateOnly(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		for _, path := range []string{selfSubjectReviews, selfSubjectReviews + "/a", selfSubjectReviews + "?watch=1"} {
			s.do(method, path, nil).refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "")
		}
	}
	s.do(http.MethodPost, selfSubjectReviews+"?fieldValidation=Strict", m{"spec": m{}}).
		refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, `unknown field "spec"`)
	s.do(http.MethodPost, selfSubjectReviews, m{"apiVersion": "v1", "kind": "Pod"}).ok(http.StatusBadRequest)
}

func TestReview_CreateOnlyKindsHaveNoTable(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(accounts, m{"metadata": m{"name": "a"}})
	s.create(pods, pod("bound"))
	s.create(pods, pod("evicted"))
	const access = "/apis/authorization.k8s.io/v1/"
	attributes := m{"resourceAttributes": m{"verb": "get", "resource": "pods", "namespace": "default"}}
	as := with(m{"spec": m{"user": "a", "resourceAttributes": attributes["resourceAttributes"]}, "metadata": m{}},
		"namespace", "default")
	for path, body := range map[string]m{
		selfSubjectReviews: {},
		"/apis/authentication.k8s.io/v1/tokenreviews":           {"spec": m{"token": "a"}},
		access + "subjectaccessreviews":                         {"spec": as["spec"]},
		access + "selfsubjectaccessreviews":                     {"spec": attributes},
		access + "selfsubjectrulesreviews":                      {"spec": m{"namespace": "default"}},
		access + "namespaces/default/localsubjectaccessreviews": as,
		accounts + "/a/token":                                   {"spec": m{"audiences": []any{"x"}}},
		pods + "/bound/binding": {"metadata": m{"name": "bound"},
			"target": m{"name": "n"}},
		pods + "/evicted/eviction": {"metadata": m{"name": "evicted"}},
	} {
		s.do(http.MethodPost, path, body, "Accept", asTable).
			refused(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
				"only the following media types are accepted")
		answered := s.do(http.MethodPost, path, body, "Accept", asTable+",application/json").ok(http.StatusCreated)
		require.NotEqual(t, "Table", answered.at("kind"), path)
	}
	require.Equal(t, "PartialObjectMetadata", s.do(http.MethodPost, accounts+"/a/token", m{}, "Accept",
		asPartial).ok(http.StatusCreated).at("kind"))
}
