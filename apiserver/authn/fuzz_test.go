package authn_test

import (
	"bytes"
	"encoding/base64"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// FuzzAuthorization checks that only headers with an issued token authenticate a user. Tokens are signed with new
// keys in each process, so the fuzzer changes parts of tokens.
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
		for position := range uint16(3) {
			f.Add(uint8(i), position*100, position*100+1, "")
			f.Add(uint8(i), position*40, uint16(len(token)), ".")
		}
	}
	for _, header := range []string{
		"", "Bearer", "bearer  abcdef.0123456789abcdef", "Basic YTpi", "Bearer a.b.c", "Bearer ...",
		"Bearer eyJhbGciOiJub25lIn0.e30.",
		"Bearer ABCDEF.0123456789abcdef", `Bearer {"payload":"e30","signatures":[{"protected":"e30","signature":""}]}`,
	} {
		f.Add(uint8(len(tokens)), uint16(0), uint16(0), header)
	}
	f.Fuzz(func(t *testing.T, which uint8, from, end uint16, text string) {
		header := text
		if i := int(which); i < len(tokens) { // the text replaces a part of a valid token
			from, end := min(int(from), len(tokens[i])), min(int(end), len(tokens[i]))
			header = "Bearer " + tokens[i][:min(from, end)] + text + tokens[i][max(from, end):]
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

// FuzzJWT checks that an issuer's token is accepted only as it was signed.
func FuzzJWT(f *testing.F) {
	p := startProvider(f)
	a, _ := configured(f, configHeader+"jwt:\n"+issuerOf(p, `
    username: {expression: 'claims.sub'}
    groups: {expression: 'dyn(claims.groups).map(g, "p:" + g)'}
`, "  userValidationRules: [{expression: \"!user.username.startsWith('system:')\"}]\n"))
	tokens := []string{p.token(f, map[string]any{"groups": []string{"a"}}), p.token(f, map[string]any{"sub": "system:admin",
		"groups": []string{}})}
	require.Equal(f, "jane", known(f, a, tokens[0]).Name)
	refused(f, a, tokens[1], "failed")
	for i := range tokens {
		for position := range uint16(6) {
			f.Add(uint8(i), position*50, position*50+1, "")
			f.Add(uint8(i), position*50, uint16(500), ".")
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, from, to uint16, text string) {
		good := tokens[int(which)%len(tokens)]
		position, end := min(int(from), len(good)), min(int(to), len(good))
		token := good[:min(position, end)] + text + good[max(position, end):]
		id, ok, err := a.AuthenticateToken(t.Context(), token, nil)
		if !ok || err != nil {
			require.Nil(t, id)
			return
		}
		token = strings.Join(strings.Fields(token), "") // the library skips white space
		require.True(t, sameToken(token, tokens[0]), token)
		require.Equal(t, "jane", id.User.Name)
	})
}

// FuzzConfig checks that every file is applied or rejected.
func FuzzConfig(f *testing.F) {
	f.Add(configHeader + "anonymous: {enabled: true, conditions: [{path: /livez}]}\n")
	f.Add(configHeader + "jwt:\n- issuer: {url: 'https://a', audiences: [a]}\n  claimMappings: {username: {claim: sub, " +
		"prefix: ''}, groups: {expression: 'claims.a'}, extra: [{key: a.b/c, valueExpression: claims.c}]}\n" +
		"  claimValidationRules: [{expression: claims.a == claims.b}]\n  userValidationRules: [{expression: " +
		"user.groups.all(g, g != 'a')}]\n")
	f.Add("{}")
	f.Fuzz(func(t *testing.T, text string) {
		config, err := authn.ParseConfig([]byte(text))
		if err != nil {
			return
		}
		a, err := authn.New(authn.Options{Config: &authn.ConfigOptions{Configuration: config}}, objects{},
			clocktesting.NewFakePassiveClock(now), slog.New(slog.DiscardHandler))
		if err != nil {
			return
		}
		for _, issuer := range config.JWT {
			require.True(t, strings.HasPrefix(issuer.Issuer.URL, "https://"))
			require.NotEmpty(t, issuer.Issuer.Audiences)
		}
		_, ok, err := a.AuthenticateToken(t.Context(), "a.b.c", nil)
		require.False(t, ok)
		require.NoError(t, err)
	})
}
