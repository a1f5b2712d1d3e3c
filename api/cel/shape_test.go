package cel_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/coxswain-dev/coxswain/api/cel"
)

// thing is a kind with a field of every type.
const thing = `{
	"Thing": {"type": "object", "properties": {
		"kind": {"type": "string"},
		"metadata": {"allOf": [{"$ref": "#/components/schemas/Meta"}], "description": "wrapped", "default": {}},
		"spec": {"$ref": "#/components/schemas/Spec"}
	}},
	"Meta": {"type": "object", "properties": {
		"name": {"type": "string"}, "namespace": {"type": "string"},
		"labels": {"type": "object", "additionalProperties": {"type": "string"}},
		"creationTimestamp": {"$ref": "#/components/schemas/Time"}
	}},
	"Spec": {"type": "object", "properties": {
		"count": {"type": "integer", "format": "int32"}, "ratio": {"type": "number"}, "on": {"type": "boolean"},
		"data": {"type": "string", "format": "byte"}, "wait": {"type": "string", "format": "duration"}, "day": {"type": "string", "format": "date"},
		"x-y.z/w__v": {"type": "string"}, "$odd": {"type": "string"}, "1st": {"type": "string"}, "import": {"type": "integer"},
		"port": {"$ref": "#/components/schemas/IntOrString"}, "size": {"$ref": "#/components/schemas/Quantity"},
		"either": {"x-kubernetes-int-or-string": true, "type": "string"},
		"sizes": {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Quantity"}},
		"free": {"type": "object"}, "open": {"type": "object", "additionalProperties": true},
		"known": {"type": "object", "properties": {"a": {"type": "string"}}, "x-kubernetes-preserve-unknown-fields": true},
		"words": {"type": "array", "items": {"type": "string"}}, "anything": {"type": "array"},
		"parts": {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}},
		"byName": {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Spec"}},
		"lost": {"$ref": "#/components/schemas/Nowhere"}, "strange": {"type": "file"}
	}},
	"Time": {"type": "string", "format": "date-time"},
	"IntOrString": {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
	"Quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]}
}`

func shapeOfThing(t *testing.T) *cel.Shape {
	t.Helper()
	var definitions map[string]*spec.Schema
	require.NoError(t, json.Unmarshal([]byte(thing), &definitions))
	return cel.NewShape("Thing", "Thing", definitions)
}

func TestShape_DeclaresTheFields(t *testing.T) {
	t.Parallel()
	shape := shapeOfThing(t)
	c := cel.NewCompiler(true)
	d := cel.Declarations{Object: shape, Params: true, Param: shape, Authorizer: true}
	requireComplaints(t, c, d, map[string]string{
		"object.spec.count > 1 && params.spec.on && oldObject == null && object != null":                                 "",
		"object.spec.ratio > 0.5 && size(object.spec.data) > 1":                                                          "",
		"object.spec.wait > duration('1s') && object.metadata.creationTimestamp < timestamp('2020-01-01T00:00:00Z')":     "",
		"object.spec.day.getFullYear() > 2000":                                                                           "",
		"object.metadata.name + object.metadata.namespace + object.metadata.__namespace__ == ''":                         "",
		"object.spec.x__dash__y__dot__z__slash__w__underscores__v == '' && object.spec.import == object.spec.__import__": "",
		"object.metadata.labels['a'].startsWith('b') && object.metadata.labels.a == 'b' && 'a' in " +
			"object.metadata.labels": "",
		"object.spec.port == 1 || object.spec.port == 'http' || object.spec.either == 2": "",
		"quantity(object.spec.size).isGreaterThan(quantity('1')) && " +
			"quantity(object.spec.sizes['cpu']).asInteger() > 1 && object.spec.sizes.cpu == 1": "",
		"object.spec.free.any.thing == 1 && object.spec.open.thing && object.spec.known.b == 1":              "",
		"object.spec.lost.any == 1 && object.spec.strange.any == 1 && object.spec.anything[0].x == 1":        "",
		"object.spec.words.all(w, w.startsWith('a')) && object.spec.words == ['a']":                          "",
		"object.spec.parts.all(p, p.spec.parts.all(q, q.spec.byName['x'].parts[0].metadata.name == 'y'))":    "",
		"object.?spec.?parts[?0].?metadata.?name.orValue('') == '' && has(object.spec.count)":                "",
		"request.name == object.metadata.name && namespaceObject.metadata.name == object.metadata.namespace": "",
		"authorizer.requestResource.check('get').allowed()":                                                  "",

		"object.specc.count > 1":                 "undefined field 'specc'",
		"has(object.spec.replicas)":              "undefined field 'replicas'",
		"object.?spec.?replicas.orValue(1) == 1": "undefined field 'replicas'",
		"oldObject.metadata.nam == 'x'":          "undefined field 'nam'",
		"params.spec.replicas > 1":               "undefined field 'replicas'",
		"object.spec.odd == ''":                  "undefined field 'odd'",
		"object.spec.count == 'one'":             "no matching overload for '_==_' applied to '(int, string)'",
		"object.spec + 1 == 2":                   "no matching overload for '_+_' applied to '(Thing.spec, int)'",
		"object.spec.parts[0] + 1 == 2": "no matching overload for '_+_' applied to " +
			"'(Thing.spec.parts.@idx, int)'",
		"object.spec.byName['a'] + 1 == 2": "no matching overload for '_+_' applied to " +
			"'(Thing.spec.byName.@elem, int)'",
		"object.spec.words.all(w, w > 1)":                                              "no matching overload for '_>_' applied to '(string, int)'",
		"object.spec.parts.all(p, p.spec.on > 1)":                                      "no matching overload for '_>_' applied to '(bool, int)'",
		"object.spec.parts.all(p, p.spec.parts.all(q, q.spec.byName['x'].port2 == 1))": "undefined field 'port2'",
		"object.metadata.creationTimestamp == ''":                                      "applied to '(timestamp, string)'",
		"object.metadata.labels.a == 1":                                                "applied to '(string, int)'",
	})
}

// requireComplaints checks that each expression gets its complaint, or none if the complaint is "".
func requireComplaints(t *testing.T, c *cel.Compiler, d cel.Declarations, expressions map[string]string) {
	t.Helper()
	for source, complaint := range expressions {
		complaints, err := c.Check(source, d)
		require.NoError(t, err)
		if complaint == "" {
			require.Empty(t, complaints, source)
		} else {
			require.Contains(t, complaints, complaint, source)
		}
	}
}

// Variables keep simple types. Other variables, and variables with errors, are dynamic.
func TestShape_OfVariables(t *testing.T) {
	t.Parallel()
	d := cel.Declarations{Object: shapeOfThing(t)}
	c := cel.NewCompiler(true)
	for name, source := range map[string]string{
		"count": "object.spec.count", "spec": "object.spec", "parts": "object.spec.parts", "sizes": "object.spec.sizes",
		"wrong": "object.nothing",
	} {
		c.Define(name, source, d)
	}
	requireComplaints(t, c, d, map[string]string{
		"variables.spec.any == 1 && variables.parts[0].any == 1 && variables.sizes.cpu == 1 && variables.wrong.any": "",
		"variables.count == ''":      "applied to '(int, string)'",
		"variables.parts == 1":       "applied to '(list(dyn), int)'",
		"variables.sizes == 1":       "applied to '(map(string, dyn), int)'",
		"variables.none == 1":        "undefined field 'none'",
		"object.spec.count == 'one'": "applied to '(int, string)'",
	})
}

// The shapes of one compiler do not affect others.
func TestShape_IsNotShared(t *testing.T) {
	t.Parallel()
	complaints, err := cel.NewCompiler(false).Check("object.none == 1", cel.Declarations{Object: shapeOfThing(t)})
	require.NoError(t, err)
	require.Equal(t, "ERROR: <input>:1:7: undefined field 'none'\n | object.none == 1\n | ......^", complaints)
	complaints, err = cel.NewCompiler(false).Check("object.none == 1", cel.Declarations{})
	require.NoError(t, err)
	require.Empty(t, complaints)
}
