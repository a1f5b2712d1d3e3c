package webhook

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzReadCredentials checks that an accepted kubeconfig gives a user, or none, for each target.
func FuzzReadCredentials(f *testing.F) {
	for _, text := range []string{
		"", "{}", "null", "users: [{name: '*', user: {token: t}}]",
		"apiVersion: v1\nkind: Config\nusers:\n- name: '*.svc'\n  user: {tokenFile: t}\n- name: a.b.svc:444\n  user: {}\n",
		"contexts: [{name: c, context: {user: u}}]\ncurrent-context: c\nusers: [{name: u}]",
		"contexts: [{name: c}]\ncurrent-context: c\n", "current-context: c\nusers: [null]\ncontexts: [null]\n",
		"users: [{name: a, user: {exec: {command: x, apiVersion: client.authentication.k8s.io/v1}}}]",
		"users: [{name: a, user: {client-certificate-data: AA==, client-key: ../k}}]",
	} {
		f.Add(text, "hook.shop.svc:443")
	}
	f.Add("users: [{name: '', user: {token: t}}, {name: '*.', user: {}}]", "")
	f.Fuzz(func(t *testing.T, text, target string) {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := ReadCredentials(path)
		if err != nil {
			return
		}
		if user := c.user(target); user == nil && c.config.AuthInfos["*"] != nil {
			t.Fatalf("%q has no user though * has one", target)
		}
	})
}
