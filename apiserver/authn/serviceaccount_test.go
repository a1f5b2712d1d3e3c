package authn_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// issuerByClock returns an issuer that uses the test's clock, and its key.
func issuerByClock(t *testing.T) (*authn.Issuer, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	issuer, err := authn.NewIssuer(authn.IssuerOptions{SigningKey: key, Audiences: []string{"api"},
		Clock: clocktesting.NewFakePassiveClock(now)})
	require.NoError(t, err)
	return issuer, key
}

// found are objects by their resource; all others do not exist.
type found map[string]authn.Found

func (f found) Find(_ context.Context, resource schema.GroupResource, _, _ string) (authn.Found, error) {
	if object, ok := f[resource.Resource]; ok {
		return object, nil
	}
	return authn.Found{}, authn.ErrNotFound
}

func (found) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return nil, authn.ErrNotFound
}

func (found) TokenUsed(context.Context, *corev1.Secret, string) error { return nil }

// A token ends with each object that it is bound to: when the object is deleted, was replaced by another one with
// its name, or has been terminating for longer than leeway.
func TestServiceAccountToken_EndsWithEachObjectThatItIsBoundTo(t *testing.T) {
	t.Parallel()
	issuer, _ := issuerByClock(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot",
		UID: "uid"}}
	meta := metav1.ObjectMeta{Namespace: "default", Name: "x", UID: "uid"}
	for resource, request := range map[string]authn.TokenRequest{
		"serviceaccounts": {},
		"pods":            {Pod: &corev1.Pod{ObjectMeta: meta}},
		"secrets":         {Secret: &corev1.Secret{ObjectMeta: meta}},
		"nodes":           {Node: &corev1.Node{ObjectMeta: meta}},
	} {
		request.Account, request.Audiences = account, []string{"api"}
		request.IssuedAt, request.Lifetime = now, time.Hour
		token, err := issuer.Sign(request)
		require.NoError(t, err)
		authenticates := func(object *authn.Found) error {
			objects := found{"serviceaccounts": {UID: "uid"}}
			if delete(objects, resource); object != nil {
				objects[resource] = *object
			}
			_, ok, err := authenticate(t, authn.Options{ServiceAccounts: issuer},
				objects).AuthenticateToken(t.Context(),
				token, nil)
			require.Equal(t, err == nil, ok, resource)
			return err
		}
		require.NoError(t, authenticates(&authn.Found{UID: "uid"}), resource)
		require.NoError(t, authenticates(&authn.Found{UID: "uid", Deleted: now.Add(time.Minute)}),
			"%s: in its grace period",
			resource)
		require.NoError(t, authenticates(&authn.Found{UID: "uid", Deleted: now.Add(-time.Minute)}),
			"%s: by another clock",
			resource)
		require.ErrorContains(t, authenticates(&authn.Found{UID: "uid",
			Deleted: now.Add(-time.Minute - time.Second)}),
			"its "+resource+" has been deleted")
		require.ErrorContains(t, authenticates(&authn.Found{UID: "other"}),
			"its "+resource+" is not the one it was made for")
		require.ErrorContains(t, authenticates(nil), "looking up its "+resource+": not found")
	}
}

// holding has one account and one secret.
type holding struct {
	found
	secret *corev1.Secret
}

func (h holding) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return h.secret, nil
}

func TestServiceAccountToken_InASecretEndsWithTheSecretAndTheAccount(t *testing.T) {
	t.Parallel()
	issuer, key := issuerByClock(t)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	require.NoError(t, err)
	const prefix = "kubernetes.io/serviceaccount/"
	sound := map[string]any{"iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:robot",
		prefix + "namespace": "default", prefix + "secret.name": "s", prefix + "service-account.name": "robot",
		prefix + "service-account.uid": "uid"}
	alive := authn.Found{UID: "uid"}
	for name, c := range map[string]struct {
		claims  map[string]any // the ones that differ from valid claims
		account authn.Found
		change  func(*corev1.Secret)
		words   string
	}{
		"sound": {nil, alive, func(*corev1.Secret) {}, ""},
		"no namespace": {map[string]any{prefix + "namespace": ""}, alive, func(*corev1.Secret) {},
			"incomplete"},
		"no secret": {map[string]any{prefix + "secret.name": ""}, alive, func(*corev1.Secret) {},
			"incomplete"},
		"no UID": {map[string]any{prefix + "service-account.uid": ""}, alive,
			func(*corev1.Secret) {}, "incomplete"},
		"another subject": {map[string]any{"sub": "system:serviceaccount:default:x"}, alive,
			func(*corev1.Secret) {}, "incomplete"},
		"another issuer": {map[string]any{"iss": authn.DefaultIssuer}, alive, func(*corev1.Secret) {},
			"incomplete"},
		"another token in it": {nil, alive, func(s *corev1.Secret) { s.Data["token"] = []byte("x") },
			"does not hold it any more"},
		"a secret that ends": {nil, alive,
			func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: now} }, "does not hold it any more"},
		"a secret marked invalid": {nil, alive, func(s *corev1.Secret) {
			s.Labels = map[string]string{"kubernetes.io/legacy-token-invalid-since": "2026-01-01"}
		}, "marked as invalid"},
		"an account that ends": {nil, authn.Found{UID: "uid", Deleted: now}, func(*corev1.Secret) {},
			"its account has been deleted"},
		"another account": {nil, authn.Found{UID: "x"}, func(*corev1.Secret) {},
			"its account has been deleted"},
	} {
		token, err := jwt.Signed(signer).Claims(sound).Claims(c.claims).Serialize()
		require.NoError(t, err, name)
		secret := &corev1.Secret{Data: map[string][]byte{"token": []byte(token)}}
		c.change(secret)
		_, ok, err := authenticate(t, authn.Options{ServiceAccounts: issuer},
			holding{found{"serviceaccounts": c.account}, secret}).AuthenticateToken(t.Context(), token, nil)
		require.Equal(t, c.words == "", ok, name)
		if c.words != "" {
			require.ErrorContains(t, err, c.words, name)
		}
	}
}
