package structural

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	ours "github.com/coxswain-dev/coxswain/api/field"
)

func refusals(errs field.ErrorList) (list []string) {
	for _, e := range errs {
		list = append(list, strings.TrimPrefix(string(e.Type), "FieldValue")+" "+e.Field+": "+e.Detail)
	}
	return list
}

func TestValidateDefaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, schema string
		want         []string
	}{
		{"none", `{type: object}`, nil},
		{"sound", `{type: object, properties: {a: {type: integer, minimum: 1, default: 1}}}`, nil},
		{"of another type", `{type: object, properties: {a: {type: array, items: {type: string, default: 1}}}}`,
			[]string{`TypeInvalid s.properties[a].items.default:  in body must be of type string: "integer"`}},
		{"inside of another", `{type: object, properties: {a: {type: object, default: {b: 1}, properties: {
			b: {type: integer, minimum: 2, default: 3}}}}}`,
			[]string{"Invalid s.properties[a].default.b: b in body should be greater than or equal to 2"}},
		{"not pruned", `{type: object, properties: {a: {type: object, default: {b: 1}}}}`,
			[]string{"Invalid s.properties[a].default: must not have unknown fields"}},
		{"kept", `{type: object, properties: {a: {type: object, default: {b: 1},
			x-kubernetes-preserve-unknown-fields: true}}}`, nil},
		{"that breaks a rule", `{type: object, properties: {a: {type: integer, default: 1,
			x-kubernetes-validations: [{rule: self > 1, message: more}]}}}`,
			[]string{"Invalid s.properties[a].default: more"}},
		{"that breaks a rule for new values", `{type: object, properties: {a: {type: integer, default: 1,
			x-kubernetes-validations: [{rule: oldSelf.hasValue(), message: old, optionalOldSelf: true}]}}}`,
			[]string{"Invalid s.properties[a].default: old"}},
		{"that rules can't see", `{type: object, properties: {a: {x-kubernetes-preserve-unknown-fields: true, default: 1,
			x-kubernetes-validations: [{rule: "true"}]}}}`, []string{"Invalid s.properties[a].default: rule compiler " +
			"initialization error: failed to convert to declType for CEL validation rules"}},
		{"of an int-or-string", `{type: object, properties: {a: {x-kubernetes-int-or-string: true, default: true}}}`, nil},
		{"of an embedded object", `{type: object, properties: {a: {type: object, x-kubernetes-embedded-resource: true,
			default: {kind: A}, x-kubernetes-preserve-unknown-fields: true}}}`,
			[]string{"Required s.properties[a].default.apiVersion: "}},
		{"in metadata", `{type: object, properties: {a: {type: object, x-kubernetes-embedded-resource: true, properties: {
			metadata: {type: object, properties: {labels: {type: object, default: {"a b": c},
				additionalProperties: {type: string}}}}}}}}`,
			[]string{"Invalid s.properties[a].properties[metadata].properties[labels].default: must result in valid " +
				`metadata: metadata.labels: Invalid value: "a b": name part must consist of alphanumeric characters, '-', ` +
				`'_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or ` +
				`'123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, err := New(properties(t, c.schema))
			require.NoError(t, err)
			require.Equal(t, c.want, refusals(s.ValidateDefaults(ours.NewPath("s"), &DefaultChecks{})))
		})
	}
}

func TestValidateDefaults_MayKeepUnknownFields(t *testing.T) {
	t.Parallel()
	s, err := New(properties(t, `{type: object, properties: {a: {type: object, default: {b: 1}}}}`))
	require.NoError(t, err)
	require.Empty(t, s.ValidateDefaults(nil, &DefaultChecks{KeepUnknown: func() bool { return true }}))
}

// The schemas of a definition share one budget for the evaluation of rules, since there can be a thousand versions.
func TestValidateDefaults_StopAtTheBudget(t *testing.T) {
	t.Parallel()
	s, err := New(properties(t, `{type: object, properties: {a: {type: array, items: {type: integer}, default: [`+
		strings.Repeat("1,", 80)+`1], x-kubernetes-validations: [{rule: "self.all(x, self.all(y, x == y))"}]}}}`))
	require.NoError(t, err)
	c := DefaultChecks{spent: definitionBudget - 100_000}
	require.Empty(t, s.ValidateDefaults(nil, &c))
	require.Greater(t, c.spent, int64(definitionBudget-100_000))
	c.spent = definitionBudget - 1000
	require.Contains(t, s.ValidateDefaults(nil, &c)[0].Detail, "running out of cost budget")
}

func TestPruneDefaults_RemovesUnknownFields(t *testing.T) {
	t.Parallel()
	const embedded = `x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true`
	for schema, want := range map[string]struct {
		changed bool
		obj     string // with defaults
	}{
		`{type: object}`: {false, `{}`},
		`{type: object, properties: {a: {type: object, default: {}}}}`:                           {false, `{"a":{}}`},
		`{type: object, properties: {a: {type: object, default: {b: 1}}}}`:                       {true, `{"a":{}}`},
		`{type: object, properties: {a: {type: array, items: {type: object, default: {b: 1}}}}}`: {true, `{}`},
		`{type: object, additionalProperties: {type: object, default: {b: 1}}}`:                  {true, `{}`},
		`{type: object, properties: {a: {type: object, default: {b: 1}}, c: {type: object, default: {d: {e: f}},
			properties: {d: {type: object, properties: {g: {type: string, default: h}}}}}}}`: {true,
			`{"a":{},"c":{"d":{"g":"h"}}}`},
		`{type: object, properties: {metadata: {type: object, properties: {x: {type: string, default: a}}}}}`: {true, `{}`},
		`{type: object, properties: {a: {type: object, ` + embedded + `, default: {apiVersion: v1, kind: Pod,
			spec: {x: 1}, metadata: {name: p, odd: 1, labels: {a: b}}}}}}`: {true,
			`{"a":{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"b"},"name":"p"},"spec":{"x":1}}}`},
		`{type: object, properties: {a: {type: object, default: {}, ` + embedded + `, properties: {metadata: {type: object,
			default: {}, properties: {odd: {type: string, default: x}}}}}}}`: {true, `{"a":{"metadata":{}}}`},
		`{type: object, default: a}`: {false, `{}`}, // the default of the root is not an object
	} {
		s, err := New(properties(t, schema))
		require.NoError(t, err)
		require.Equal(t, want.changed, s.PruneDefaults(), schema)
		require.False(t, s.PruneDefaults(), schema)
		obj := map[string]any{}
		s.Default(obj)
		doc, err := json.Marshal(obj)
		require.NoError(t, err)
		require.JSONEq(t, want.obj, string(doc), schema)
	}
}

func TestSupportsFormat(t *testing.T) {
	t.Parallel()
	require.True(t, SupportsFormat("string", "date-time"))
	require.True(t, SupportsFormat("", "k8s-short-name"))
	require.True(t, SupportsFormat("integer", "int32"))
	require.False(t, SupportsFormat("number", "int32"))
	require.False(t, SupportsFormat("object", "date"))
}
