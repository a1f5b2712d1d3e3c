package aggregation

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// FuzzFragment checks that parts of another server's OpenAPI can be merged into this server's, and that the result
// is JSON.
func FuzzFragment(f *testing.F) {
	gv := schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}
	const own = `{"swagger":"2.0","info":{"title":"K","version":"v1"},"paths":{"/api/":{}},` +
		`"definitions":{"A":{"type":"object"},"B":{"$ref":"#/definitions/A"}}}`
	for _, text := range []string{
		"{}", "null", `{"paths":{"/apis/wardle.example.com/v1/":{"get":{"responses":{"200":{"schema":` +
			`{"$ref":"#/definitions/A"},"description":"d"}}}}},"definitions":{"A":{"type":"string","description":"x"}}}`,
		`{"paths":{"/apis/wardle.example.com/v1/x":{"parameters":[{"$ref":"#/parameters/p"}]}},"parameters":{"p":` +
			`{"in":"query","name":"p","type":"string"}}}`,
		`{"paths":{"/apis/wardle.example.com/v1/x":null},"definitions":{"A":{"$ref":"#/definitions/A"}}}`,
		`{"definitions":{"A":[]},"paths":{"/apis/wardle.example.com/v1/":{"x-a":"#/definitions/A"}}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var doc swagger
		if json.Unmarshal([]byte(text), &doc) != nil {
			return
		}
		part, err := newFragment(&doc, gv)
		if err != nil {
			return
		}
		for path := range part.paths {
			if !strings.HasPrefix(path, "/apis/wardle.example.com/v1/") {
				t.Fatalf("it takes the path %q", path)
			}
		}
		merged, err := merge([]byte(own), []*fragment{part})
		if err != nil || !json.Valid(merged) {
			t.Fatalf("%q: %v", merged, err)
		}
	})
}

// FuzzIdentity checks that a user arrives at another server unchanged or not at all, and that headers that claim an
// identity do not arrive.
func FuzzIdentity(f *testing.F) {
	f.Add("jane", "devs", "example.com/Scope", "all", "X-Remote-User")
	f.Add(" jane", "a\r\nX-Remote-User: root", "ü%", "", "x_remote_group")
	f.Add("", "", "", "\x00", "IMPERSONATE-USER")
	f.Fuzz(func(t *testing.T, name, group, key, value, header string) {
		h, err := identity(&authn.User{Name: name, Groups: []string{group}, Extra: map[string][]string{key: {value}}})
		if err != nil {
			return
		}
		if h.Get(userHeader) != strings.Trim(name, " \t") || strings.ContainsAny(name+group+value, "\r\n\x00") {
			t.Fatalf("%v is not %q", h, name)
		}
		for field := range h {
			escaped, is := strings.CutPrefix(field, http.CanonicalHeaderKey(extraHeader))
			if !is {
				continue
			}
			if strings.ContainsFunc(escaped, func(r rune) bool { return r > 0x7f || !isToken(byte(r)) }) {
				t.Fatalf("%q is no header's name", field)
			}
			if back, err := url.PathUnescape(escaped); err != nil || !strings.EqualFold(back, key) {
				t.Fatalf("%q is %q there", key, back)
			}
		}
		client := http.Header{header: {"root"}}
		disclaim(client)
		plain := strings.ReplaceAll(strings.ToLower(header), "_", "-")
		if strings.HasPrefix(plain, "x-remote-") && len(client) > 0 {
			t.Fatalf("%q arrives", header)
		}
	})
}
