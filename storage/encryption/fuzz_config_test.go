package encryption

import (
	"encoding/base64"
	"strings"
	"testing"
)

// FuzzParse checks that an accepted configuration has providers for all of its resources.
func FuzzParse(f *testing.F) {
	secret := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"
	for _, rest := range []string{
		"- resources: [secrets]\n  providers: [{aesgcm: {keys: [{name: a, secret: KEY}]}}, {identity: {}}]\n",
		"- resources: ['*.apps', '*.*']\n  providers: [{aescbc: {keys: [{name: a, secret: KEY}]}}]\n",
		"- resources: [secrets]\n  providers: [{secretbox: {keys: [{name: a, secret: KEY}, {name: a, secret: KEY}]}}]\n",
		"- resources: [secrets]\n  providers: [{kms: {apiVersion: v2, name: k, endpoint: 'unix:///k', timeout: 3s}}]\n",
		"- resources: [secrets]\n  providers: [{aesgcm: {keys: [{name: a, secret: KEYKEY}]}, KEY: {}}]\n",
		"- KEY\n", "  KEY: [}",
	} {
		f.Add(head + rest)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(strings.ReplaceAll(text, "KEY", secret)))
		if err != nil {
			return
		}
		for _, r := range c.Resources {
			if len(r.Resources) == 0 || len(r.Providers) == 0 {
				t.Fatalf("accepted: %q", text)
			}
		}
	})
}
