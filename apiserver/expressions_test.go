package apiserver_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/apiserver"
)

// expressionsOf returns n different entries with expressions that are expensive to compile for their size.
func expressionsOf(n int, form string, entry func(i int, expression string) m) []m {
	list := make([]m, n)
	for i := range list {
		list[i] = entry(i, fmt.Sprintf(form, i))
	}
	return list
}

// Compiling an expression takes half a millisecond or more. A body with too many expressions is rejected before they
// are compiled. The test does not run in parallel with others, which compile expressions as well.
func TestExpressions_TooManyAreRejectedBeforeCompilation(t *testing.T) {
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	const largest = 2_900_000
	long := strings.Repeat("a || ", 20)
	form := strings.ReplaceAll(long, "a", "object.metadata.name != ''") + "object.metadata.name != '%d'"
	deviceForm := strings.ReplaceAll(long, "a", "device.driver != ''") + "device.driver != '%d'"
	selectors := func(n int) []m {
		return expressionsOf(n, deviceForm, func(_ int, e string) m { return m{"cel": m{"expression": e}} })
	}
	named := func(i int, e string) m { return m{"name": fmt.Sprintf("n%d", i), "expression": e} }
	many := largest / (len(form) + 60)
	var requests []m
	for i := range 32 {
		var alternatives []m
		for j := range 4 {
			alternatives = append(alternatives, m{"name": fmt.Sprintf("s%d", j), "deviceClassName": "c",
				"selectors": selectors(32)})
		}
		requests = append(requests, m{"name": fmt.Sprintf("r%d", i), "firstAvailable": alternatives})
	}
	claim := m{"devices": m{"requests": requests}}
	match := m{"resourceRules": []m{{"operations": []string{"CREATE"}, "apiGroups": []string{""},
		"apiVersions": []string{"v1"}, "resources": []string{"pods"}}}}
	policy := func(field string, list []m) m {
		spec := m{"matchConstraints": match, "validations": []m{{"expression": "true"}}}
		spec[field] = list
		return spec
	}
	mutations := expressionsOf(many, form, func(_ int, e string) m {
		return m{"patchType": "JSONPatch", "jsonPatch": m{"expression": e + " ? [] : []"}}
	})
	hooks := func(n, each int) []m {
		list := make([]m, n)
		for i := range list {
			list[i] = m{"name": fmt.Sprintf("a%d.b.c", i), "sideEffects": "None", "admissionReviewVersions": []string{"v1"},
				"clientConfig": m{"url": "https://a"}, "matchConditions": expressionsOf(each, form, named)}
		}
		return list
	}
	rules := expressionsOf(many, "self.a != '%d'", func(_ int, e string) m {
		return m{"rule": e + strings.Repeat(" || true", 40)}
	})
	definition := m{"group": "example.com", "scope": "Namespaced", "names": m{"plural": "as", "kind": "A"},
		"versions": []m{{"name": "v1", "served": true, "storage": true, "schema": m{"openAPIV3Schema": m{"type": "object",
			"properties": m{"a": m{"type": "string"}}, "x-kubernetes-validations": rules}}}}}
	plain := func(_ int, e string) m { return m{"expression": e} }
	annotation := func(i int, e string) m {
		return m{"key": fmt.Sprintf("k%d", i), "valueExpression": "string(" + e + ")"}
	}
	const devices, admission = "/apis/resource.k8s.io/v1/", "/apis/admissionregistration.k8s.io/v1/"
	const policies = admission + "validatingadmissionpolicies"
	for name, c := range map[string]struct {
		path string
		body m
	}{
		"a claim":                {devices + "namespaces/default/resourceclaims", m{"spec": claim}},
		"a template of claims":   {devices + "namespaces/default/resourceclaimtemplates", m{"spec": m{"spec": claim}}},
		"a class":                {devices + "deviceclasses", m{"spec": m{"selectors": selectors(many)}}},
		"validations":            {policies, m{"spec": policy("validations", expressionsOf(many, form, plain))}},
		"variables":              {policies, m{"spec": policy("variables", expressionsOf(many, form, named))}},
		"conditions of a policy": {policies, m{"spec": policy("matchConditions", expressionsOf(many, form, named))}},
		"annotations":            {policies, m{"spec": policy("auditAnnotations", expressionsOf(many, form, annotation))}},
		"mutations": {admission + "mutatingadmissionpolicies", m{"spec": m{"matchConstraints": match,
			"reinvocationPolicy": "Never", "mutations": mutations}}},
		"conditions of a hook":  {admission + "validatingwebhookconfigurations", m{"webhooks": hooks(1, many)}},
		"conditions of hooks":   {admission + "mutatingwebhookconfigurations", m{"webhooks": hooks(many/50, 50)}},
		"rules of a definition": {"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", m{"spec": definition}},
	} {
		c.body["metadata"] = m{"name": "as.example.com"}
		body, err := json.Marshal(c.body)
		require.NoError(t, err)
		require.Greater(t, len(body), 1_400_000, name)
		require.Less(t, len(body), 3<<20, name)
		before := cel.Compilations()
		res := a.do(http.MethodPost, c.path, body)
		require.Equal(t, http.StatusUnprocessableEntity, res.code, "%s: %.300s", name, res.body)
		require.LessOrEqual(t, cel.Compilations()-before, int64(32), name)
	}
}
