package admission

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// FuzzReadConfig checks that each plugin's part of an accepted configuration is JSON.
func FuzzReadConfig(f *testing.F) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n"
	for _, text := range []string{
		"", head, head + "plugins: [{name: PodSecurity, configuration: {defaults: {enforce: baseline}}}]",
		head + "plugins: [{name: Nothing}]", head + "plugins: [{name: PodSecurity, path: config}]",
		head + "plugins: [{name: PodSecurity, path: other}, null]",
		head + "plugins: [{name: EventRateLimit, configuration: &a [*a]}]",
	} {
		f.Add(text, "kind: Any\n")
	}
	f.Add(head+"plugins: [{name: PodSecurity, path: other}]", "a: &a [*a]")
	f.Fuzz(func(t *testing.T, text, other string) {
		dir := t.TempDir()
		for name, content := range map[string]string{"config": text, "other": other} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		config, err := ReadConfig(filepath.Join(dir, "config"))
		if err != nil {
			return
		}
		for plugin, content := range config {
			if len(content) > 0 && !json.Valid(content) {
				t.Fatalf("%s has %q", plugin, content)
			}
		}
	})
}
