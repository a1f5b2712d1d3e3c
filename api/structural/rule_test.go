package structural

import (
	"context"
	_ "embed"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api/field"
)

// costly is the schema of testdata/rulecosts.txt.
const costly = `
type: object
properties:
  s: {type: string}
  short: {type: string, maxLength: 10}
  enum: {type: string, enum: [one, three]}
  num: {type: integer}
  f: {type: number}
  t: {type: string, format: date-time}
  d: {type: string, format: duration}
  day: {type: string, format: date}
  data: {type: string, format: byte, maxLength: 20}
  port: {x-kubernetes-int-or-string: true, maxLength: 5}
  list: {type: array, items: {type: string, maxLength: 20}}
  few: {type: array, maxItems: 5, items: {type: string, maxLength: 20}}
  numbers: {type: array, maxItems: 7, items: {type: integer}}
  map: {type: object, maxProperties: 4, additionalProperties: {type: string, maxLength: 3}}
  objects:
    type: array
    maxItems: 3
    items: {type: object, required: [a], properties: {a: {type: string, maxLength: 9}}}
  wide: {type: object, additionalProperties: {type: integer}}
`

//go:embed testdata/rulecosts.txt
var ruleCosts string

func properties(t testing.TB, source string) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	var props apiextensionsv1.JSONSchemaProps
	require.NoError(t, yaml.UnmarshalStrict([]byte(source), &props))
	return &props
}

// estimate returns the estimate of a schema's only rule.
func estimate(t testing.TB, props *apiextensionsv1.JSONSchemaProps) RuleEstimate {
	t.Helper()
	s, err := New(props)
	require.NoError(t, err)
	list := s.RuleSite(nil).all(t, nil)
	require.Len(t, list, 1)
	return list[0]
}

// TestRuleSite_CostMatchesKubeAPIServer: each line of rulecosts.txt has the cost that kube-apiserver v1.37 estimates
// for a rule, including rules that are too expensive for a definition.
func TestRuleSite_CostMatchesKubeAPIServer(t *testing.T) {
	t.Parallel()
	for line := range strings.Lines(ruleCosts) {
		cost, source, _ := strings.Cut(strings.TrimSpace(line), "\t")
		want, err := strconv.ParseUint(cost, 10, 64)
		require.NoError(t, err)
		props := properties(t, costly)
		props.XValidations = apiextensionsv1.ValidationRules{{Rule: source, MessageExpression: "self.short"}}
		r := estimate(t, props)
		require.NoError(t, r.Err, source)
		require.NoError(t, r.MessageErr, source)
		require.Equal(t, want, r.Cost, source)
	}
}

func TestRuleSite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, schema, path, err string
		cost                    uint64
	}{
		{"at the root", `{x-kubernetes-validations: [{rule: "true"}], type: object}`,
			"x-kubernetes-validations[0]", "", 0},
		{"in a bounded list", `{type: object, properties: {a: {type: array, maxItems: 7, items:
			{type: integer, x-kubernetes-validations: [{rule: self > 1}]}}}}`,
			"properties[a].items.x-kubernetes-validations[0]", "", 7 * 2},
		{"in bounded maps", `{type: object, properties: {a: {type: object, maxProperties: 3,
			additionalProperties: {type: object, maxProperties: 5, additionalProperties: {type: integer,
			 x-kubernetes-validations: [{rule: self > 1}]}}}}}`,
			"properties[a].additionalProperties.additionalProperties.x-kubernetes-validations[0]", "", 15 * 2},
		{"in an endless list", `{type: object, properties: {a: {type: array, items:
			{type: integer, x-kubernetes-validations: [{rule: self > 1}]}}}}`,
			"properties[a].items.x-kubernetes-validations[0]", "", 3 << 20 / 2 * 2},
		{"of another type", `{type: object, x-kubernetes-validations: [{rule: "3"}]}`, "x-kubernetes-validations[0]",
			"cel expression must evaluate to a bool", 0},
		{"of an unknown field", `{type: object, x-kubernetes-validations: [{rule: self.a}]}`,
			"x-kubernetes-validations[0]", "undefined field 'a'", 0},
		{"that makes an object", `{type: object, x-kubernetes-validations: [{rule: "@self{} == self"}]}`,
			"x-kubernetes-validations[0]", "compilation failed", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := estimate(t, properties(t, c.schema))
			require.Equal(t, c.path, r.Path.String())
			require.Equal(t, c.cost, r.Cost)
			if c.err != "" {
				require.ErrorContains(t, r.Err, c.err)
			} else {
				require.NoError(t, r.Err)
			}
		})
	}
}

func TestRuleFieldPath(t *testing.T) {
	t.Parallel()
	const schema = `
type: object
properties:
  a: {type: object, properties: {b.c: {type: string}, it's: {type: string}}}
  m: {type: object, additionalProperties: {type: string}}
  free: {type: object, additionalProperties: true}
`
	for path, want := range map[string]string{".a": "", ".a['b.c']": "", `['a']['it\'s']`: "",
		".m.k": "", ".m['k.l']": "",
		".b": "does not refer to a valid field", ".a.b": "does not refer to a valid field", ".free.x": "does not refer",
		"a": "expected [ or . but got: a", ".a[0]": "expected single quoted string but got",
		".":      "unexpected end of JSON path",
		`['\x']`: "invalid escape char"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			s, err := New(properties(t, schema))
			require.NoError(t, err)
			if _, err = s.ruleFieldPath(path); want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

// ruled has a rule for each feature of CEL's view of values.
const ruled = `
type: object
x-kubernetes-validations:
- {rule: "self.metadata.name.size() < 5", message: " the name is too long "}
- {rule: "!has(self.when) || self.when > timestamp('2026-01-01T00:00:00Z')"}
- rule: "!has(self.set) || !has(oldSelf.set) || self.set == oldSelf.set"
  messageExpression: "'the set has ' + string(self.set.size())"
  reason: FieldValueForbidden
  fieldPath: .set
- {rule: "!has(self.keyed) || size(self.keyed + self.keyed) < 3"}
- {rule: "!has(self.keyed) || !has(oldSelf.keyed) || self.keyed == oldSelf.keyed", message: keyed}
- {rule: "oldSelf.hasValue() || has(self.num)", optionalOldSelf: true, fieldPath: .num, reason: FieldValueRequired}
- {rule: "!has(self.port) || self.port < 50"}
- {rule: "!has(self.data) || self.data == b'abc'", reason: FieldValueDuplicate}
- {rule: "!has(self.long) || self.long > duration('1m')"}
- {rule: "!has(self.namespace) || self.__namespace__.contains('a')"}
- {rule: "!has(self.list) || self.list[0] == 'a'"}
- {rule: "!has(self.nul) || self.nul == 'a'"}
- {rule: "!has(self.a__dash__b) || self.a__dash__b == 'a'"}
properties:
  when: {type: string, format: date-time}
  set: {type: array, x-kubernetes-list-type: set, items: {type: string}}
  keyed:
    type: array
    x-kubernetes-list-type: map
    x-kubernetes-list-map-keys: [k]
    items:
      type: object
      properties: {k: {type: string}, v: {type: string}}
      x-kubernetes-validations: [{rule: "!has(self.v) || self.v == oldSelf.v", message: v stays}]
  num: {type: integer}
  port: {x-kubernetes-int-or-string: true}
  m: {type: object, additionalProperties: {type: string, x-kubernetes-validations: [{rule: "self != 'b'"}]}}
  data: {type: string, format: byte}
  long: {type: string, format: duration}
  namespace: {type: string}
  list: {type: array, items: {type: string, x-kubernetes-validations: [{rule: "self.size() > 0"}]}}
  emb:
    type: object
    x-kubernetes-embedded-resource: true
    x-kubernetes-preserve-unknown-fields: true
    x-kubernetes-validations: [{rule: "!has(self.metadata) || self.metadata.name == 'a'"}]
  nul: {type: string, nullable: true}
  a-b: {type: string}
  all: {type: string, allOf: [{x-kubernetes-validations: [{rule: "self != 'a'"}]}]}
  "a$b": {type: string, x-kubernetes-validations: [{rule: "self == 'b'"}]}
`

func TestValidateRules(t *testing.T) {
	t.Parallel()
	s := parse(t, ruled)
	for _, c := range []struct{ name, object, old, want string }{
		{"valid", `{}`, ``, ``},
		{"a root's metadata", `{metadata: {name: abcdef}}`, ``, `<nil>: Invalid value: the name is too long`},
		{"a time", `{when: "2025-01-02T03:04:05Z"}`, ``, `failed rule: !has(self.when)`},
		{"a set in another order", `{set: [a, b]}`, `{set: [b, a]}`, ``},
		{"a set that changes", `{set: [a, b]}`, `{set: [a]}`, `set: Forbidden: the set has 2`},
		{"a set without an old one", `{set: [a, b]}`, ``, ``},
		{"items with keys are added once", `{keyed: [{k: a}, {k: b}]}`, ``, ``},
		{"in another order", `{keyed: [{k: a}, {k: b}]}`, `{keyed: [{k: b}, {k: a}]}`, ``},
		{"an item that changes", `{keyed: [{k: a, v: c}]}`, `{keyed: [{k: a, v: b}], num: 1}`,
			`<nil>: Invalid value: keyed; keyed[0]: Invalid value: v stays`},
		{"an optional old value", `{num: null}`, ``, `num: Required value: failed rule: oldSelf.hasValue()`},
		{"an update", `{port: 3}`, `{}`, ``},
		{"a dynamic value", `{port: word}`, ``, `'no such overload': call arguments did not match`},
		{"a number", `{port: 60}`, ``, `failed rule: !has(self.port)`},
		{"entries of a map", `{m: {a: b}}`, ``, `m[a]: Invalid value: "b": failed rule: self != 'b'`},
		{"bytes", `{data: YWJk}`, ``, `<nil>: Duplicate value`},
		{"a duration", `{long: 3s}`, ``, `failed rule: !has(self.long)`},
		{"a keyword", `{namespace: b}`, ``, `failed rule: !has(self.namespace)`},
		{"an index out of bounds", `{list: []}`, ``, `index out of bounds: 0 evaluating rule`},
		{"items", `{list: [a, ""]}`, ``, `list[1]: Invalid value: "": failed rule: self.size() > 0`},
		{"an embedded object", `{emb: {metadata: {name: b}}}`, ``, `emb: Invalid value: failed rule`},
		{"null counts as missing", `{nul: null}`, ``, ``},
		{"an escaped name", `{a-b: c}`, ``, `failed rule: !has(self.a__dash__b)`},
		{"in allOf", `{all: a}`, ``, `all: Invalid value: "a": failed rule: self != 'a'`},
		{"a name that rules can't write", `{a$b: c}`, ``, `a$b: Invalid value: "c": failed rule: self == 'b'`},
		{"a value that does not change", `{m: {a: b}, num: 1}`, `{m: {a: b}}`, `warning: m[a]: Invalid value: "b"`},
		{"beside one that does", `{m: {a: b, c: b}}`, `{m: {a: b}}`, `m[c]: Invalid value: "b"; warning: m[a]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			obj := read(t, c.object)
			var old map[string]any
			for name, value := range map[string]any{"metadata": map[string]any{"name": "a"}, "num": int64(1)} {
				if _, found := obj[name]; !found {
					obj[name] = value
				}
			}
			if c.old != "" {
				old = read(t, c.old)
			}
			errs, warnings, err := s.ValidateRules(t.Context(), obj, old)
			require.NoError(t, err)
			got := messages(errs, nil)
			for _, w := range warnings {
				got = append(got, "warning: "+w)
			}
			if c.want == "" {
				require.Empty(t, got)
				return
			}
			want := strings.Split(c.want, "; ")
			require.Len(t, got, len(want), "%q", got)
			for i, part := range want {
				require.Contains(t, got[i], part)
			}
		})
	}
}

// TestValidateRules_IsBounded: neither one rule nor all together exceed their budgets or outlast the request.
func TestValidateRules_IsBounded(t *testing.T) {
	t.Parallel()
	list := make([]any, 3000)
	for i := range list {
		list[i] = "word"
	}
	// Each step of the loop has a high cost and takes little time.
	obj := map[string]any{"list": list, "text": strings.Repeat("a", 1<<20), "metadata": map[string]any{"name": "a"}}
	one := parse(t, `
type: object
x-kubernetes-validations: [{rule: "self.list.all(x, !self.text.contains(x))"}, {rule: "false"}]
properties: {list: {type: array, items: {type: string}}, text: {type: string}}
`)
	errs, _, err := one.ValidateRules(t.Context(), obj, nil)
	require.NoError(t, err)
	require.Len(t, errs, 1, "nothing is evaluated behind it")
	require.ErrorContains(t, errs[0], "no further validation rules will be run due to call cost exceeds limit for rule")

	all := parse(t, `
type: object
properties:
  list: {type: array, items: {type: string, x-kubernetes-validations: [{rule: "self.size() > 3"}]}}
`)
	e := ruleEvaluation{ctx: t.Context(), budget: 1000}
	e.value(all.compiledRules(), obj, nil, correlation{}, nil)
	require.Len(t, e.errs, 1, "nothing is evaluated behind it")
	require.ErrorContains(t, e.errs[0], outOfBudget)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = all.ValidateRules(ctx, obj, nil)
	require.ErrorIs(t, err, context.Canceled)

	many := parse(t, `{type: object, properties: {list: {type: array, items: {type: string,
		x-kubernetes-validations: [{rule: "false"}]}}}}`)
	errs, _, err = many.ValidateRules(t.Context(), obj, nil)
	require.NoError(t, err)
	require.Len(t, errs, field.MaxErrors)
}

// TestValidateRules_CompilesOnce makes several requests at the same time.
func TestValidateRules_CompilesOnce(t *testing.T) {
	t.Parallel()
	s := parse(t, ruled)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			errs, _, err := s.ValidateRules(context.Background(), read(t, `{metadata: {name: abcdef}, num: 1}`), nil)
			if err != nil || len(errs) != 1 {
				t.Error(errs, err)
			}
		})
	}
	all.Wait()
}
