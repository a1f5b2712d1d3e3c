package apiserver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutator is a policy (if its name begins with p) or a webhook that adds a label to the object, either always or if the
// object has another label.
type mutator struct {
	name   string
	adds   string // the label; "" for none
	after  string // a label that must exist; "" for none
	again  bool   // reinvocationPolicy: IfNeeded
	counts bool   // whether every call adds another label
}

// TestWebhooks_AreReinvokedIfNeeded checks how often each webhook is called, and the order of the calls.
func TestWebhooks_AreReinvokedIfNeeded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		mutators []mutator
		calls    string // of the webhooks, in their order
		labels   string
	}{
		{"nobody changes anything", []mutator{{name: "a", again: true}, {name: "b", again: true}}, "a b", ""},
		{"never", []mutator{{name: "a"}, {name: "b", adds: "x"}}, "a b", "x"},
		{"one alone is not called again for its own change", []mutator{{name: "a", adds: "x", again: true}}, "a", "x"},
		{"the one before a change", []mutator{{name: "a", again: true}, {name: "b", adds: "x"}}, "a b a", "x"},
		{"not the one after it", []mutator{{name: "a", adds: "x"}, {name: "b", again: true}}, "a b", "x"},
		{"all before the last change", []mutator{{name: "a", again: true}, {name: "b", again: true}, {name: "c", adds: "x"}},
			"a b c a b", "x"},
		{"only those that want it", []mutator{{name: "a", again: true}, {name: "b"}, {name: "c", adds: "x"}}, "a b c a", "x"},
		{"two that change", []mutator{{name: "a", adds: "x", again: true}, {name: "b", adds: "y", again: true}}, "a b a",
			"x y"},
		{"one that follows", []mutator{{name: "a", adds: "y", after: "x", again: true}, {name: "b", adds: "x"}}, "a b a",
			"x y"},
		{"no third round", []mutator{{name: "a", counts: true, again: true}, {name: "b", counts: true, again: true}}, "a b a b",
			"a1 a2 b1 b2"},
		{"a loop of three ends", []mutator{{name: "a", counts: true, again: true}, {name: "b", counts: true, again: true},
			{name: "c", counts: true, again: true}}, "a b c a b c", "a1 a2 b1 b2 c1 c2"},
		{"a policy before", []mutator{{name: "p", adds: "z", after: "x", again: true}, {name: "a", adds: "x"}}, "a", "x z"},
		{"a policy that never comes again", []mutator{{name: "p", adds: "z", after: "x"}, {name: "a", adds: "x"}}, "a", "x"},
		{"a policy that follows, and a webhook that follows it", []mutator{{name: "p", adds: "z", after: "x", again: true},
			{name: "a", adds: "x", again: true}}, "a a", "x z"},
		{"a policy that changes does not call webhooks twice", []mutator{{name: "p", adds: "z"}, {name: "a", again: true}},
			"a", "z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := startHooked(t)
			var order []string
			for _, x := range c.mutators {
				h.reinvoked(x, &order)
			}
			labels, _ := h.create(configMaps, labeled("c", m{"first": "1"})).at("metadata", "labels").(m)
			for _, name := range strings.Fields(c.labels) {
				require.Contains(t, labels, name)
			}
			require.Len(t, labels, len(strings.Fields(c.labels))+1, "%v", labels)
			require.Equal(t, c.calls, strings.Join(order, " "))
		})
	}
}

// reinvoked configures a mutator, and appends the calls of webhooks to order. Mutating webhooks are called one after
// the other.
func (h *hooked) reinvoked(x mutator, order *[]string) {
	h.t.Helper()
	policy := "Never"
	if x.again {
		policy = "IfNeeded"
	}
	if strings.HasPrefix(x.name, "p") {
		h.mutating(x.name, m{"reinvocationPolicy": policy,
			"matchConstraints": m{"resourceRules": []m{rule("", "configmaps", "CREATE")}},
			"mutations": []m{{"patchType": "ApplyConfiguration", "applyConfiguration": m{"expression": fmt.Sprintf(
				"%q == '' || %q in object.metadata.labels ? Object{metadata: Object.metadata{labels: {%q: '1'}}} : Object{}",
				x.after, x.after, x.adds)}}}}, m{})
		return
	}
	name := x.name + ".example.com"
	h.mutates(x.name, h.hook(name, m{"reinvocationPolicy": policy}))
	times := 0
	h.on(name, respondWith(func(review m) m {
		*order = append(*order, x.name)
		times++
		response := m{"uid": review["request"].(m)["uid"], "allowed": true}
		labels := review["request"].(m)["object"].(m)["metadata"].(m)["labels"].(m)
		_, there := labels[x.after]
		switch {
		case x.counts:
			response["patchType"], response["patch"] = "JSONPatch", encodePatch(label(fmt.Sprint(x.name, times), "1"))
		case x.adds != "" && (x.after == "" || there):
			response["patchType"], response["patch"] = "JSONPatch", encodePatch(label(x.adds, "1"))
		}
		return m{"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}
	}))
}

// Built-in plugins are called again after a webhook, too: a container that it has added gets its defaults.
func TestWebhooks_PluginsActOnWhatTheyAdd(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.create("/api/v1/namespaces/default/limitranges", m{"metadata": m{"name": "l"}, "spec": m{"limits": []m{
		{"type": "Container", "default": m{"cpu": "100m"}}}}})
	h.mutates("m", h.hook("h.example.com", rules(ruleFor("", "v1", "pods", "CREATE", ""))))
	h.on("h.example.com", respondPatch(add("/spec/containers/-", m{"name": "sidecar", "image": "nginx"})))
	containers := h.create(pods, pod("p")).at("spec", "containers").([]any)
	require.Len(t, containers, 2)
	require.Equal(t, "100m", containers[1].(m)["resources"].(m)["limits"].(m)["cpu"])
	require.Equal(t, "Always", containers[1].(m)["imagePullPolicy"])
	require.Len(t, h.asked("h.example.com"), 1)
}

// Webhooks are called in the order of the names of their configurations, then in the order within each. Two webhooks
// may have one name.
func TestWebhooks_AreCalledInOrder(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	for _, c := range []struct{ configuration, first, second string }{{"b", "3", "4"}, {"a", "1", "2"}} {
		one, two := h.hook("h.example.com", nil), h.hook("h2.example.com", nil)
		for _, x := range []struct {
			hook m
			path string
		}{{one, c.first}, {two, c.second}} {
			x.hook["clientConfig"].(m)["url"] = h.hooks.URL + "/" + x.path
			h.on(x.path, respondPatch(add("/data/order", "then "+x.path)))
		}
		h.mutates(c.configuration, one, two)
	}
	require.Equal(t, "then 4", h.create(configMaps, settings("c", m{"a": "b"})).at("data", "order"))
	seen := h.once("3")["object"].(m)["data"].(m)["order"]
	require.Equal(t, "then 2", seen)
}
