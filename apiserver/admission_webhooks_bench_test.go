package apiserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/json"
)

// BenchmarkWebhooks creates ConfigMaps, as dry runs to exclude etcd, without a webhook, with ten of each type for other
// kinds, with one of each type that is called, and with ten validating ones that are called. The webhooks' server is in
// the same process: its work is measured, too.
func BenchmarkWebhooks(b *testing.B) {
	for _, c := range []struct {
		name string
		set  func(*hooked)
	}{
		{"none", func(*hooked) {}},
		{"others", func(h *hooked) {
			for i := range 10 {
				name := fmt.Sprintf("h%d.example.com", i)
				other := rules(ruleFor("apps", "v1", "deployments", "*", ""), ruleFor("", "v1", "pods", "*", ""))
				h.mutates(name, h.hook(name, other))
				h.validates(name, h.hook(name, other))
			}
		}},
		{"mutating", func(h *hooked) {
			h.mutates("m", h.hook("m.example.com", nil))
			h.on("m.example.com", respondPatch(add("/data/b", "c")))
		}},
		{"validating", func(h *hooked) { h.validates("v", h.hook("v.example.com", nil)) }},
		{"ten validating", func(h *hooked) {
			for i := range 10 {
				name := fmt.Sprintf("h%d.example.com", i)
				h.validates(name, h.hook(name, nil))
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			h := startHooked(b)
			c.set(h)
			doc, err := json.Marshal(settings("c", m{"a": strings.Repeat("x", 2000)}))
			if err != nil {
				b.Fatal(err)
			}
			h.quick(b, http.MethodPost, configMapsURL+"?dryRun=All", "application/json", doc)
			measure(b, func() { h.quick(b, http.MethodPost, configMapsURL+"?dryRun=All", "application/json", doc) })
		})
	}
}
