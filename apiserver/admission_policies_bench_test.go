package apiserver_test

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/json"
)

// BenchmarkPolicies creates ConfigMaps, as dry runs to exclude etcd, without an admission policy, with one for another
// kind, with one that is satisfied, and with one that changes them.
func BenchmarkPolicies(b *testing.B) {
	for _, c := range []struct {
		name string
		set  func(*server)
	}{
		{"none", func(*server) {}},
		{"other", func(s *server) { s.validating("p", policyOn(rule("apps", "deployments", "*"), "false"), m{}) }},
		{"satisfied", func(s *server) {
			s.validating("p", policyOn(rule("", "configmaps", "*"), "!has(object.data) || size(object.data) < 5"), m{})
		}},
		{"changed", func(s *server) {
			s.mutating("p", m{"matchConstraints": m{"resourceRules": []m{rule("", "configmaps", "CREATE")}},
				"mutations": []m{
					{"patchType": "ApplyConfiguration",
						"applyConfiguration": m{"expression": "Object{metadata: Object.metadata{labels: {'a': 'b'}}}"}}}}, m{})
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := start(b)
			c.set(s)
			doc, err := json.Marshal(settings("c", m{"a": strings.Repeat("x", 2000)}))
			if err != nil {
				b.Fatal(err)
			}
			s.quick(b, http.MethodPost, configMapsURL+"?dryRun=All", "application/json", doc)
			measure(b, func() { s.quick(b, http.MethodPost, configMapsURL+"?dryRun=All", "application/json", doc) })
		})
	}
}
