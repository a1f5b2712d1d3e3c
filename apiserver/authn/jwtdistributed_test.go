package authn_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A token may name the location of its groups: another token, which must be as valid as itself.
func TestJWT_DistributedGroups(t *testing.T) {
	t.Parallel()
	p, stranger := startProvider(t), startProvider(t)
	a, _ := configured(t, configHeader+"jwt:\n"+issuerOf(p, "{username: {claim: sub, prefix: \"\"}, "+
		"groups: {claim: groups, prefix: \"g:\"}}", ""))
	type m = map[string]any
	groups := []string{"devs", "ops"}
	forged := stranger.token(t, m{"groups": groups})
	p.elsewhere = map[string]string{
		"/good":      p.token(t, m{"groups": groups}),
		"/unnamed":   p.token(t, m{"groups": "devs", "sub": nil}),
		"/subject":   p.token(t, m{"groups": groups, "sub": "bob"}),
		"/audience":  p.token(t, m{"groups": groups, "aud": "another"}),
		"/expired":   p.token(t, m{"groups": groups, "exp": 1}),
		"/forged":    forged,
		"/empty":     "",
		"/groupless": p.token(t, nil),
	}
	sourced := func(endpoint string) m {
		return m{"_claim_names": m{"groups": "src1"},
			"_claim_sources": m{"src1": m{"endpoint": endpoint, "access_token": "ours"}}}
	}
	known(t, a, p.token(t, nil))
	user := known(t, a, p.token(t, sourced(p.URL+"/good")))
	require.Equal(t, []string{"g:devs", "g:ops", "system:authenticated"}, user.Groups)
	user = known(t, a, p.token(t, sourced(p.URL+"/unnamed")))
	require.Equal(t, []string{"g:devs", "system:authenticated"}, user.Groups)

	own := sourced(p.URL + "/good")
	own["groups"] = "mine"
	require.Equal(t, []string{"g:mine", "system:authenticated"}, known(t, a, p.token(t, own)).Groups)
	for name, claims := range map[string]m{
		"other claims are elsewhere": {"_claim_names": m{"address": "a"}, "_claim_sources": m{"a": m{"endpoint": "x"}}},
		"aggregated":                 {"_claim_names": m{"groups": "src1"}, "_claim_sources": m{"src1": m{"JWT": forged}}},
	} {
		require.Equal(t, []string{"system:authenticated"}, known(t, a, p.token(t, claims)).Groups, name)
	}

	for words, claims := range map[string]m{
		"about another subject":         sourced(p.URL + "/subject"),
		"expected audience":             sourced(p.URL + "/audience"),
		"token is expired":              sourced(p.URL + "/expired"),
		"verify token":                  sourced(p.URL + "/forged"),
		"malformed jwt":                 sourced(p.URL + "/empty"),
		`claim "groups" is not present`: sourced(p.URL + "/groupless"),
		"404":                           sourced(p.URL + "/nowhere"),
		"is not https":                  sourced("http://127.0.0.1:1/"),
		"source does not exist":         {"_claim_names": m{"groups": "a"}},
		"cannot unmarshal number into":  {"_claim_names": 1},
		"cannot unmarshal array into":   {"_claim_names": m{"groups": "a"}, "_claim_sources": []int{1}},
	} {
		refused(t, a, p.token(t, claims), words)
	}
	refused(t, a, p.token(t, sourced("https://127.0.0.1:1/")), "could not expand distributed claims")
}
