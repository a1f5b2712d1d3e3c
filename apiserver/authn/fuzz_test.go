package authn_test

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// FuzzAuthorization: no header authenticates a user but those with an issued token. Tokens are signed
// anew in each process, so changes to tokens are fuzzed.
func FuzzAuthorization(f *testing.F) {
	issuer := newIssuer(f)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid"}}
	sign := func(r authn.TokenRequest) string {
		r.Account, r.IssuedAt, r.Lifetime = account, time.Now(), time.Hour
		token, err := issuer.Sign(r)
		require.NoError(f, err)
		return token
	}
	tokens := []string{
		sign(authn.TokenRequest{Audiences: []string{"api"}}),
		sign(authn.TokenRequest{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid"}}}),
		"abcdef.0123456789abcdef", "secret-1",
	}
	names := []string{"system:serviceaccount:shop:web", "system:serviceaccount:shop:web", "system:bootstrap:abcdef",
		"jane"}
	a := authenticate(f, authn.Options{
		ServiceAccounts: issuer, BootstrapTokens: true, NoAnonymous: true, TokenFile: write(f, "tokens.csv",
			"secret-1,jane,42\n"),
	}, objects{"kube-system/bootstrap-token-abcdef": {Type: corev1.SecretTypeBootstrapToken, Data: map[string][]byte{
		"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"),
		"usage-bootstrap-authentication": []byte("true"),
	}}})
	for i, token := range tokens {
		user, ok, err := a.Authenticate(request("Bearer " + token))
		require.NoError(f, err)
		require.True(f, ok)
		require.Equal(f, names[i], user.Name)
		for at := range uint16(3) {
			f.Add(uint8(i), at*100, at*100+1, "")
			f.Add(uint8(i), at*40, uint16(len(token)), ".")
		}
	}
	for _, header := range []string{
		"", "Bearer", "bearer  abcdef.0123456789abcdef", "Basic YTpi", "Bearer a.b.c", "Bearer ...",
		"Bearer eyJhbGciOiJub25lIn0.e30.",
		"Bearer ABCDEF.0123456789abcdef", `Bearer {"payload":"e30","signatures":[{"protected":"e30","signature":""}]}`,
	} {
		f.Add(uint8(len(tokens)), uint16(0), uint16(0), header)
	}
	f.Fuzz(func(t *testing.T, which uint8, from, to uint16, text string) {
		header := text
		if i := int(which); i < len(tokens) { // the text replaces a part of a valid token
			from, to := min(int(from), len(tokens[i])), min(int(to), len(tokens[i]))
			header = "Bearer " + tokens[i][:min(from, to)] + text + tokens[i][max(from, to):]
		}
		user, ok, err := a.Authenticate(request(header))
		if !ok || err != nil {
			require.Nil(t, user)
			return
		}
		scheme, token, _ := strings.Cut(strings.TrimSpace(header), " ")
		require.True(t, strings.EqualFold(scheme, "Bearer"))
		token, _, _ = strings.Cut(token, " ")
		i := slices.IndexFunc(tokens, func(good string) bool { return sameToken(token, good) })
		require.GreaterOrEqual(t, i, 0, "%q is nobody's", token)
		require.Equal(t, names[i], user.Name)
	})
}

// sameToken compares the decoded parts of two JWTs: the last characters of base64 have unused bits, and
// base64 skips line ends.
func sameToken(token, good string) bool {
	if token == good {
		return true
	}
	is, was := strings.Split(token, "."), strings.Split(good, ".")
	return len(is) == 3 && slices.EqualFunc(is, was, func(is, was string) bool {
		a, errA := base64.RawURLEncoding.DecodeString(is)
		b, errB := base64.RawURLEncoding.DecodeString(was)
		return errA == nil && errB == nil && bytes.Equal(a, b)
	})
}
