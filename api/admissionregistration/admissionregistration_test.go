package admissionregistration_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestWebhooks_ValidateRejects(t *testing.T) {
	t.Parallel()
	const hooks = `
metadata: {name: w}
webhooks:
- name: a.b.c
  clientConfig: {service: {namespace: n, name: s, path: /validate}}
  sideEffects: None
  admissionReviewVersions: [v1]
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
`
	for _, kind := range []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"} {
		kindtest.Create(t, kind, hooks, []kindtest.Case{
			{"name", []string{"a.b.c", "short"}, []string{"Invalid webhooks[0].name"}},
			{"name twice", []string{"webhooks:\n", "webhooks:" +
				strings.TrimPrefix(hooks[strings.Index(hooks, "\n- name"):], "")},
				[]string{"Duplicate webhooks[1].name"}},
			{"no side effects told", []string{"  sideEffects: None\n", ""},
				[]string{"Required webhooks[0].sideEffects"}},
			{"side effects", []string{"sideEffects: None", "sideEffects: Some"},
				[]string{"NotSupported webhooks[0].sideEffects"}},
			{"versions", []string{"[v1]\n  rules", "[v2, v2, A]\n  rules"},
				[]string{"Invalid webhooks[0].admissionReviewVersions[1]",
					"Invalid webhooks[0].admissionReviewVersions[2]", "Invalid webhooks[0].admissionReviewVersions"}},
			{"no versions", []string{"  admissionReviewVersions: [v1]\n", ""},
				[]string{"Required webhooks[0].admissionReviewVersions"}},
			{"timeout", []string{"  sideEffects", "  timeoutSeconds: 31\n  sideEffects"},
				[]string{"Invalid webhooks[0].timeoutSeconds"}},
			{"url", []string{"{service: {namespace: n, name: s, path: /validate}}", "{url: 'http://u@/a?b#c'}"},
				[]string{"Invalid webhooks[0].clientConfig.url", "Invalid webhooks[0].clientConfig.url",
					"Invalid webhooks[0].clientConfig.url", "Invalid webhooks[0].clientConfig.url",
					"Invalid webhooks[0].clientConfig.url"}},
			{"both", []string{"{service: {", "{url: 'https://a', service: {"},
				[]string{"Required webhooks[0].clientConfig"}},
			{"service", []string{"namespace: n, name: s, path: /validate", "port: 0, path: //a"}, []string{
				"Required webhooks[0].clientConfig.service.name", "Required webhooks[0].clientConfig.service.namespace",
				"Invalid webhooks[0].clientConfig.service.port", "Invalid webhooks[0].clientConfig.service.path"}},
			{"conditions", []string{"  sideEffects", "  matchConditions: [{name: a, expression: 'true'}, {name: " +
				"a, expression: ' '}, {name: a b, expression: x}]\n  sideEffects"}, []string{
				"Invalid webhooks[0].matchConditions[2].expression",
				"Required webhooks[0].matchConditions[1].expression", "Duplicate webhooks[0].matchConditions[1].name",
				"Invalid webhooks[0].matchConditions[2].name"}},
			{"operations", []string{"[CREATE]", "[CREATE, '*', FLY]"},
				[]string{"Invalid webhooks[0].rules[0].operations", "NotSupported webhooks[0].rules[0].operations[2]"}},
			{"groups", []string{`[""]`, "[a, '*']", "[v1], resources", "['*', ''], resources"}, []string{
				"Invalid webhooks[0].rules[0].apiGroups", "Invalid webhooks[0].rules[0].apiVersions",
				"Required webhooks[0].rules[0].apiVersions[1]"}},
			{"resources", []string{"[pods]}", "['pods/*', pods/log, '*/*', '']}"}, []string{
				"Invalid webhooks[0].rules[0].resources[1]", "Required webhooks[0].rules[0].resources[3]",
				"Invalid webhooks[0].rules[0].resources"}},
			{"everything and one", []string{"[pods]}", "['*', pods]}"},
				[]string{"Invalid webhooks[0].rules[0].resources"}},
		})
	}
}

func TestAdmissionPolicies_ValidateReject(t *testing.T) {
	t.Parallel()
	const match = "{resourceRules: [{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [pods]}]}"
	const policy = `
metadata: {name: p}
spec:
  matchConstraints: ` + match + `
  validations: [{expression: 'true'}]
`
	kindtest.Create(t, "ValidatingAdmissionPolicy", policy, []kindtest.Case{
		{"no match", []string{"  matchConstraints: " + match + "\n", ""}, []string{"Required spec.matchConstraints"}},
		{"no rules", []string{match, "{}"}, []string{"Required spec.matchConstraints.resourceRules"}},
		{"names", []string{"{operations", "{resourceNames: [a, a, b/c], operations"}, []string{
			"Duplicate spec.matchConstraints.resourceRules[0].resourceNames[1]",
			"Invalid spec.matchConstraints.resourceRules[0].resourceNames[2]"}},
		{"nothing to say", []string{"[{expression: 'true'}]", "[]"},
			[]string{"Required spec.validations", "Required spec.auditAnnotations"}},
		{"validation", []string{"{expression: 'true'}",
			`{expression: ' ', message: "a\nb", messageExpression: ' ', reason: Unknown}`}, []string{
			"Required spec.validations[0].expression", "Invalid spec.validations[0].message",
			"Invalid spec.validations[0].messageExpression", "NotSupported spec.validations[0].reason"}},
		{"variables", []string{"  validations", "  variables: [{name: in, expression: a}, {}]\n  validations"},
			[]string{
				"Invalid spec.variables[0].expression", "Invalid spec.variables[0].name",
				"Required spec.variables[1].name",
				"Required spec.variables[1].expression"}},
		{"annotations", []string{"  validations",
			"  auditAnnotations: [{key: a, valueExpression: \"'b'\"}, {key: a}]\n  validations"}, []string{
			"Duplicate spec.auditAnnotations[1].key", "Required spec.auditAnnotations[1].valueExpression"}},
		{"parameter", []string{"  validations", "  paramKind: {apiVersion: A/V1, kind: a_b}\n  validations"}, []string{
			"Invalid spec.paramKind.apiVersion", "Invalid spec.paramKind.apiVersion", "Invalid spec.paramKind.kind"}},
	})
	const mutating = `
metadata: {name: p}
spec:
  reinvocationPolicy: Never
  matchConstraints: ` + match + `
  mutations: [{patchType: JSONPatch, jsonPatch: {expression: '[JSONPatch{}]'}}]
`
	kindtest.Create(t, "MutatingAdmissionPolicy", mutating, []kindtest.Case{
		{"deletion", []string{"[CREATE]", "[DELETE]"},
			[]string{"NotSupported spec.matchConstraints.resourceRules.operations"}},
		{"no mutation", []string{"[{patchType: JSONPatch, jsonPatch: {expression: '[JSONPatch{}]'}}]", "[]"},
			[]string{"Required spec.mutations"}},
		{"patch type", []string{"patchType: JSONPatch", "patchType: Odd"},
			[]string{"NotSupported spec.mutations[0].patchType"}},
		{"other patch", []string{"patchType: JSONPatch", "patchType: ApplyConfiguration"},
			[]string{"Required spec.mutations[0].applyConfiguration", "Invalid spec.mutations[0].jsonPatch"}},
		{"no expression", []string{"{expression: '[JSONPatch{}]'}", "{}"},
			[]string{"Required spec.mutations[0].jsonPatch.expression"}},
		{"reinvocation", []string{"Never", "Often"}, []string{"NotSupported spec.reinvocationPolicy"}},
	})
	const binding = "metadata: {name: b}\nspec: {policyName: p, validationActions: [Deny]}\n"
	kindtest.Create(t, "ValidatingAdmissionPolicyBinding", binding, []kindtest.Case{
		{"policy", []string{"policyName: p", "policyName: A_b"}, []string{"Invalid spec.policyName"}},
		{"actions", []string{"[Deny]", "[Deny, Warn, Warn, Cry]"}, []string{"Duplicate spec.validationActions[2]",
			"NotSupported spec.validationActions[3]", "Invalid spec.validationActions"}},
		{"parameter", []string{"{policyName", "{paramRef: {name: a, selector: {}}, policyName"}, []string{
			"Forbidden spec.paramRef.name", "Forbidden spec.paramRef.selector",
			"Required spec.paramRef.parameterNotFoundAction"}},
	})
	r := kindtest.Of(t, "ValidatingAdmissionPolicyBinding")
	require.Equal(t, "*/a", r.Cells(kindtest.Decode(t, r, "spec: {paramRef: {name: a}}"))[2])
	require.Equal(t, "<unset>", r.Cells(kindtest.Decode(t, r, "spec: {}"))[2])
}

func TestExpressions_AreCountedPerObject(t *testing.T) {
	t.Parallel()
	const match = "{resourceRules: [{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [pods]}]}"
	half := func(entry string) string { return strings.Repeat(entry, 501) }
	kindtest.Create(t, "ValidatingAdmissionPolicy", `
metadata: {name: p}
spec:
  matchConstraints: `+match+`
  variables: []
  validations: [{expression: 'true'}]
`, []kindtest.Case{{"variables and validations",
		[]string{"variables: []", "variables: [" + half("{name: a, expression: '1'}, ") + "]", "[{expression: 'true'}]",
			"[" + half("{expression: 'true'}, ") + "]"},
		[]string{"TooMany spec.validations[499].expression"}}})
	const hook = `{name: a.b.c, clientConfig: {url: 'https://a'}, sideEffects: None, admissionReviewVersions: [v1],
  matchConditions: [{name: a, expression: 'true'}]}, `
	var hooks strings.Builder
	for i := range 1001 {
		hooks.WriteString(strings.Replace(hook, "a.b.c", fmt.Sprintf("a%d.b.c", i), 1))
	}
	kindtest.Create(t, "ValidatingWebhookConfiguration", "{metadata: {name: w}, webhooks: []}", []kindtest.Case{
		{"conditions of webhooks", []string{"[]", "[" + hooks.String() + "]"},
			[]string{"TooMany webhooks[1000].matchConditions[0].expression"}}})
}

func TestValidatingWebhookConfiguration_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "ValidatingWebhookConfiguration", "webhooks: [{name: a.b.c, sideEffects: None, "+
		"admissionReviewVersions: [v1], clientConfig: {url: 'https://a/b'}}]", []kindtest.Case{
		{"name", []string{"a.b.c", "a"}, []string{"Invalid webhooks[0].name"}},
		{"scheme", []string{"https:", "http:"}, []string{"Invalid webhooks[0].clientConfig.url"}},
		{"side effects", []string{"sideEffects: None", "sideEffects: Some"},
			[]string{"NotSupported webhooks[0].sideEffects"}},
		{"no client", []string{"{url: 'https://a/b'}", "{}"}, []string{"Required webhooks[0].clientConfig"}},
	})
}
