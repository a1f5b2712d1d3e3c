package review_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/review"
)

// objects are by "kind/name".
type objects map[string]api.Object

func (o objects) Newest(_ context.Context, kind schema.GroupVersionKind, _, name string) (api.Object, error) {
	if obj, ok := o[kind.Kind+"/"+name]; ok {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: kind.Kind}, name)
}

func TestTokens_ArePreparedAndSigned(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	now := clocktesting.NewFakePassiveClock(time.Unix(1767323045, 0))
	issuer, err := authn.NewIssuer(authn.IssuerOptions{SigningKey: key, Clock: now, MaxExpiration: 2 * time.Hour})
	require.NoError(t, err)
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid"}
	}
	tokens := review.Tokens{Issuer: issuer, Clock: now, Objects: objects{
		"ServiceAccount/robot": &corev1.ServiceAccount{ObjectMeta: meta("robot")},
		"Pod/mine": &corev1.Pod{ObjectMeta: meta("mine"),
			Spec: corev1.PodSpec{ServiceAccountName: "robot", NodeName: "gone"}},
		"Pod/theirs": &corev1.Pod{ObjectMeta: meta("theirs"), Spec: corev1.PodSpec{ServiceAccountName: "other"}},
	}}
	boundTo := func(kind, name string) *authenticationv1.BoundObjectReference {
		return &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: name}
	}
	stranger := boundTo("Pod", "mine")
	stranger.UID = "another"
	type spec = authenticationv1.TokenRequestSpec
	for name, c := range map[string]struct {
		account string
		uid     types.UID
		spec    spec
		seconds int64
		warned  string
		refused string
	}{
		"defaults": {seconds: 3600},
		"a pod":    {spec: spec{BoundObjectRef: boundTo("Pod", "mine")}, seconds: 3600},
		"shortened": {spec: spec{ExpirationSeconds: new(int64(8000))}, seconds: 7200,
			warned: "shortened to 7200 seconds"},
		"too short":         {spec: spec{ExpirationSeconds: new(int64(599))}, refused: "less than 10 minutes"},
		"too long":          {spec: spec{ExpirationSeconds: new(int64(1<<32 + 1))}, refused: "larger than 2^32"},
		"the account's UID": {uid: "uid", seconds: 3600},
		"the UID of an earlier account of the name": {uid: "earlier", refused: `Operation cannot be fulfilled on ` +
			`TokenRequest.authentication.k8s.io "robot": the UID in the token request (earlier) does not match the UID ` +
			`of the service account (uid)`},
		"no account": {account: "nobody", refused: "not found"},
		"no pod":     {spec: spec{BoundObjectRef: boundTo("Pod", "none")}, refused: "not found"},
		"a pod of another account": {spec: spec{BoundObjectRef: boundTo("Pod", "theirs")},
			refused: "different serviceaccount name"},
		"another pod of the name": {spec: spec{BoundObjectRef: stranger},
			refused: "does not match the UID in record"},
		"another kind": {spec: spec{BoundObjectRef: boundTo("ConfigMap", "a")},
			refused: "cannot bind token to object of type"},
	} {
		account := c.account
		if account == "" {
			account = "robot"
		}
		req := &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: c.uid}, Spec: c.spec}
		pending, err := tokens.Prepare(t.Context(), "default", account, req)
		var warnings []string
		if err == nil {
			require.Empty(t, req.Status.Token, name)
			warnings, err = pending.Sign(t.Context())
		}
		if c.refused != "" {
			require.ErrorContains(t, err, c.refused, name)
			require.Empty(t, req.Status.Token, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, types.UID("uid"), req.UID, name)
		require.Equal(t, c.seconds, *req.Spec.ExpirationSeconds, name)
		require.Equal(t, now.Now().Unix()+c.seconds, req.Status.ExpirationTimestamp.Unix(), name)
		require.NotEmpty(t, req.Status.Token, name)
		require.Equal(t, c.warned != "", len(warnings) == 1, name)
		if c.warned != "" {
			require.Contains(t, warnings[0], c.warned, name)
		}
	}
}

func TestReviewer_AnswersEveryReviewThatIsRegistered(t *testing.T) {
	t.Parallel()
	for _, r := range builtin.Kinds() {
		if r.CreateOnly && r.Kind != "Binding" {
			require.True(t, review.Answers(r.GVK()), r.Kind)
		}
	}
	require.ErrorContains(t, (&review.Reviewer{}).Answer(t.Context(), schema.GroupVersionKind{Version: "v1",
		Kind: "Pod"}, &corev1.Pod{}), "no reviewer answers a /v1, Kind=Pod")
}
