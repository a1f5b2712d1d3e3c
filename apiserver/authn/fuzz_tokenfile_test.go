package authn

import (
	"crypto/sha256"
	"strings"
	"testing"
)

// FuzzTokenFile checks that no error about a token file contains a token, and that an accepted file authenticates
// the token of each of its lines.
func FuzzTokenFile(f *testing.F) {
	const token = "t0p-s3cret"
	for _, text := range []string{
		"", "TOKEN,jane,1\n", "TOKEN,jane,1,\"a, b,,c\"\n", "TOKEN,jane\n", "TOKEN,,1\n", "TOKEN,a,1\nTOKEN,b,2\n",
		"TOKEN,\"jane,1\n", "TO\"KEN\",jane,1\n", "a,b,c,d,e,f\nTOKEN,x,\n", "\"TOKEN\"x,jane,1\n", ",jane,1\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ReplaceAll(text, "TOKEN", token)
		users, err := parseTokens([]byte(text))
		if err != nil {
			if strings.Contains(err.Error(), token) {
				t.Fatalf("the error tells the token: %v", err)
			}
			return
		}
		for key, user := range users {
			if user == nil || user.Name == "" || key == sha256.Sum256(nil) {
				t.Fatalf("%q has %v", text, user)
			}
		}
	})
}
