package cel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api/cel"
)

type doc = map[string]any

func document(d any) *cel.Document {
	return &cel.Document{Make: func() (any, error) { return d, nil }}
}

// answers is an authorizer that allows the listed checks.
type answers []string

func (a answers) Authorize(c cel.Check) (bool, string, error) {
	if c.Verb == "fail" {
		return false, "", errors.New("out of order")
	}
	user := "me"
	if c.As != nil {
		user = c.As.Username
	}
	question := strings.Join([]string{user, c.Verb, c.Path, c.Group, c.Resource, c.Subresource, c.Namespace, c.Name,
		c.FieldSelector, c.LabelSelector}, " ")
	return slices.Contains(a, strings.Join(strings.Fields(question), " ")), "asked " + c.Verb, nil
}

// bindings returns separate documents to each evaluation, since they are not safe for concurrent use.
func bindings() cel.Bindings {
	return cel.Bindings{
		Object: document(doc{"apiVersion": "apps/v1", "kind": "Deployment",
			"metadata": doc{"name": "web", "labels": doc{"a": "b"}}, "spec": doc{"replicas": int64(3), "ratio": 0.5,
				"list": []any{"x", "y"}}}),
		OldObject: nil,
		Request: document(doc{"operation": "CREATE", "name": "web", "dryRun": false,
			"userInfo": doc{"username": "me", "groups": []string{"g"}}}),
		Params:    document(doc{"most": int64(5)}),
		Namespace: document(doc{"metadata": doc{"name": "default"}}),
		Authorizer: answers{"me get /metrics", "me list apps deployments status default web a=b c=d",
			"me create apps deployments default web",
			"system:serviceaccount:default:sa get pods"},
		Resource: cel.Resource{Group: "apps", Resource: "deployments", Namespace: "default", Name: "web"},
	}
}

var everything = cel.Declarations{Params: true, Authorizer: true, Patch: true}

func evaluate(t testing.TB, source string, d cel.Declarations) (any, error) {
	t.Helper()
	x := cel.NewCompiler(false).Compile(source, cel.Any, d)
	if x.Err != nil {
		return nil, x.Err
	}
	budget := int64(cel.PolicyBudget)
	result, err := cel.NewEvaluator(bindings(), nil).Evaluate(t.Context(), x, &budget)
	require.NoError(t, err)
	return result.Plain()
}

func TestEvaluate_True(t *testing.T) {
	t.Parallel()
	for library, sources := range map[string][]string{
		"names": {
			"object.spec.replicas == 3", "oldObject == null", "request.operation == 'CREATE'",
			"params.most > object.spec.replicas",
			"namespaceObject.metadata.name == 'default'",
			"has(object.metadata.labels) && !has(object.metadata.annotations)",
			"'g' in request.userInfo.groups", "object.?status.?phase.orValue('none') == 'none'",
			"object.spec.list.all(x, x in ['x', 'y'])",
		},
		"numbers": {"1 < 1.5", "object.spec.replicas > 2.5", "object.spec.ratio < 1", "dyn(1) == dyn(1.0)"},
		"strings": {
			"'a-b'.split('-') == ['a', 'b']", "['a', 'b'].join('/') == 'a/b'", "'ABC'.lowerAscii() == 'abc'",
			"' a '.trim() == 'a'",
			"'abc'.substring(1) == 'bc'", "'abcb'.replace('b', 'x') == 'axcx'", "'abc'.charAt(1) == 'b'",
			"'%s has %d'.format(['a', 2]) == 'a has 2'",
			"strings.quote('a') == '\"a\"'", "'abc'.upperAscii().indexOf('C') == 2",
		},
		"lists": {
			"[1, 2, 2].isSorted() && !['b', 'a'].isSorted()", "[1, 2].sum() == 3", "[1.5, 2.0].sum() == 3.5",
			"[duration('1s')].sum() == duration('1s')",
			"[3, 1].min() == 1 && ['a', 'b'].max() == 'b'",
			"['a', 'b', 'a'].indexOf('a') == 0 && ['a', 'b', 'a'].lastIndexOf('a') == 2 && [1].indexOf(2) == -1",
			"[1, 1, 2].distinct() == [1, 2]", "[2, 1].sort() == [1, 2]", "[[1], [2]].flatten() == [1, 2]",
			"lists.range(2) == [0, 1]", "[1, 2].reverse() == [2, 1]", "[1, 2, 3].slice(1, 2) == [2]",
		},
		"sets": {"sets.contains([1, 2], [1])", "sets.equivalent([1, 2], [2, 1, 1])",
			"sets.intersects([1], [1, 2])"},
		"comprehensions": {"{'a': 1}.all(k, v, k == 'a' && v == 1)", "[1, 2].transformList(i, v, i + v) == [1, 3]",
			"{'a': 1}.transformMap(k, v, v + 1) == {'a': 2}", "['a'].exists(i, v, i == 0)"},
		"regex": {"'abc 123'.find('[0-9]+') == '123'", "'abc'.find('[0-9]') == ''",
			"'1 2 3'.findAll('[0-9]') == ['1', '2', '3']", "'1 2 3'.findAll('[0-9]', 2) == ['1', '2']",
			"'a1'.find(object.spec.list[0] + '?1') == '1'"},
		"url": {
			"isURL('https://a.b/c') && !isURL('../a')", "url('https://u@a.b:80/c%20d?x=1&x=2').getScheme() == 'https'",
			"url('https://a.b:80/').getHost() == 'a.b:80' && url('https://a.b:80/').getHostname() == 'a.b' && " +
				"url('https://[::1]:80/').getPort() == '80'",
			"url('https://a/c%20d').getEscapedPath() == '/c%20d'",
			"url('https://a/?x=1&x=2').getQuery() == {'x': ['1', '2']}", "url('https://a/') == url('https://a/')",
		},
		"ip": {
			"isIP('1.2.3.4') && !isIP('1.2.3') && !isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0')",
			"ip('::1').family() == 6 && ip('1.2.3.4').family() == 4",
			"ip('127.0.0.1').isLoopback() && ip('0.0.0.0').isUnspecified() && ip('fe80::1').isLinkLocalUnicast() " +
				"&& ip('224.0.0.1').isLinkLocalMulticast() && ip('8.8.8.8').isGlobalUnicast()",
			"ip.isCanonical('::1') && !ip.isCanonical('0:0::1')", "string(ip('0::1')) == '::1'",
			"ip('0::1') == ip('::1')", "type(ip('::1')) == net.IP",
		},
		"cidr": {
			"isCIDR('10.0.0.0/8') && !isCIDR('10.0.0.0')",
			"cidr('10.0.0.0/8').containsIP('10.1.2.3') && !cidr('10.0.0.0/8').containsIP(ip('11.0.0.1'))",
			"cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && " +
				"cidr('10.0.0.0/8').containsCIDR(cidr('10.0.0.0/8')) && !cidr('10.1.0.0/16').containsCIDR('10.0.0.0/8')",
			"cidr('10.1.0.0/8').ip() == ip('10.1.0.0') && cidr('10.1.0.0/8').masked() == cidr('10.0.0.0/8') && " +
				"cidr('::/64').prefixLength() == 64", "string(cidr('::/64')) == '::/64'",
		},
		"quantity": {
			"isQuantity('1.5Gi') && !isQuantity('1.5Gx')", "quantity('1Gi').isGreaterThan(quantity('1G')) && " +
				"quantity('1').isLessThan(quantity('1k')) && quantity('1k').compareTo(quantity('1000')) == 0",
			"quantity('1k') == quantity('1000')", "quantity('1').add(quantity('500m')) == quantity('1500m') && " +
				"quantity('1').add(2).sub(1).sub(quantity('1')) == quantity('1')",
			"quantity('5k').asInteger() == 5000 && quantity('500m').isInteger() == false && " +
				"quantity('500m').asApproximateFloat() == 0.5", "sign(quantity('-1')) == -1",
		},
		"semver": {
			"isSemver('1.2.3') && !isSemver('v1.2') && isSemver('v01.2', true)",
			"semver('1.2.3').isLessThan(semver('1.10.0')) && semver('1.0.0').isGreaterThan(semver('1.0.0-rc.1')) " +
				"&& semver('1.0.0').compareTo(semver('1.0.0')) == 0",
			"semver('1.2.3').major() == 1 && semver('1.2.3').minor() == 2 && semver('1.2.3').patch() == 3",
			"semver('v1.2', true) == semver('1.2.0')",
		},
		"format": {
			"!format.dns1123Label().validate('web').hasValue()", "format.dns1123Label().validate('A_b').hasValue()",
			"!format.named('uuid').value().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()",
			"format.named('date').value().validate('yesterday').value() == ['invalid date']",
			"!format.named('unheard').hasValue()", "format.uri().validate('nowhere').hasValue()",
			"format.byte().validate('&').value() == ['invalid base64']",
			"format.datetime().validate('no').hasValue() && " +
				"!format.datetime().validate('2020-01-01T10:20:30.5Z').hasValue() && " +
				"format.datetime().validate('2020-01-01T25:00:00Z').hasValue()",
			"!format.date().validate('2020-01-01').hasValue() && !format.byte().validate('YQ==').hasValue() && " +
				"format.uuid().validate('x').hasValue()", "!format.labelValue().validate('a').hasValue()",
			"format.qualifiedName().validate('/').hasValue()",
			"!format.dns1123SubdomainPrefix().validate('a-').hasValue()",
			"format.dns1035LabelPrefix().validate('1').hasValue()",
		},
		"authorizer": {
			"authorizer.path('/metrics').check('get').allowed()", "!authorizer.path('/other').check('get').allowed()",
			"authorizer.path('/metrics').check('get').reason() == 'asked get'",
			"authorizer.group('apps').resource('deployments').subresource('status').namespace('default').name('web').fieldSelector('a=b').labelSelector('c=d').check('list').allowed()",
			"authorizer.requestResource.check('create').allowed()",
			"authorizer.serviceAccount('default', 'sa').group('').resource('pods').check('get').allowed()",
			"authorizer.requestResource.check('fail').errored() && " +
				"authorizer.requestResource.check('fail').error() == 'out of order'",
			"authorizer.requestResource.check('x').error() == ''",
		},
		"jsonpatch": {"jsonpatch.escapeKey('a/b~c') == 'a~1b~0c'", "JSONPatch{op: 'add'}.op == 'add'",
			"has(JSONPatch{op: 'add'}.op) && !has(JSONPatch{op: 'add'}.value)",
			"JSONPatch{op: 'add', value: 1} == JSONPatch{op: 'add', value: 1}"},
		"objects": {"Object{spec: Object.spec{a: 1}} == Object{spec: Object.spec{a: 1}}", "Object{} != Object{a: 1}"},
	} {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			for _, source := range sources {
				got, err := evaluate(t, source, everything)
				require.NoError(t, err, "%s", source)
				require.Equal(t, true, got, "%s", source)
			}
		})
	}
}

func TestEvaluate_Errors(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"object.missing == 1":                                                       "no such key: missing",
		"([1]).filter(x, x > 1).max() == 1":                                         "max called on empty list",
		"object.spec.list.sum() == 1":                                               "no such overload",
		"'a'.find(object.spec.list[0] + '(') == ''":                                 "Illegal regex: error parsing regexp: missing closing ): `x(`",
		"url('::').getHost() == ''":                                                 "URL parse error during conversion from string",
		"ip('1.2').family() == 4":                                                   `IP Address "1.2" parse error during conversion from string`,
		"ip('::ffff:1.2.3.4').family() == 4":                                        `IPv4-mapped IPv6 address "::ffff:1.2.3.4" is not allowed`,
		"ip('fe80::1%e').family() == 4":                                             `IP address "fe80::1%e" with zone value is not allowed`,
		"cidr('10.0.0.0').masked() == cidr('::/0')":                                 "network address parse error during conversion from string",
		"cidr('10.0.0.0/8').containsIP('x')":                                        "parse error",
		"cidr('10.0.0.0/8').containsCIDR('x')":                                      "parse error",
		"quantity('x').asInteger() == 1":                                            "quantities must match the regular expression",
		"quantity('500m').asInteger() == 1":                                         "cannot convert value to integer",
		"semver('1').major() == 1":                                                  "No Major.Minor.Patch elements found",
		"semver('1.2-a', true).major() == 1":                                        "short version cannot contain PreRelease/Build meta data",
		"authorizer.path(' ').check('get').allowed()":                               "path must not be empty",
		"authorizer.group('').resource('').check('x').allowed()":                    "resource must not be empty",
		"authorizer.serviceAccount('default', 'A_').path('/').check('x').allowed()": "Invalid service account name",
		"authorizer.serviceAccount('A_', 'a').path('/').check('x').allowed()":       "Invalid service account namespace",
		"[1,2,3].map(x, authorizer.path('/x').check('get').allowed()).size() == 3":  "actual cost limit exceeded",
	} {
		_, err := evaluate(t, source, everything)
		require.ErrorContains(t, err, want, "%s", source)
		require.ErrorContains(t, err, "expression '"+source+"' resulted in error: ")
	}
}

func TestCompile_Errors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		source string
		want   cel.Result
		in     cel.Declarations
		says   string
	}{
		{"object.x ==", cel.Bool, everything,
			"compilation failed: ERROR: <input>:1:12: Syntax error: mismatched input '<EOF>' expecting"},
		{"unheard", cel.Bool, everything, "compilation failed: ERROR: <input>:1:1: undeclared reference to " +
			"'unheard' (in container '')\n | unheard\n | ^"},
		{"variables.x", cel.Bool, everything, "undeclared reference to 'variables'"},
		{"params.x", cel.Bool, cel.Declarations{}, "undeclared reference to 'params'"},
		{"authorizer.path('/').check('get').allowed()", cel.Bool, cel.Declarations{},
			"undeclared reference to 'authorizer'"},
		{"Object{}", cel.Object, cel.Declarations{}, "undeclared reference to 'Object'"},
		{"request.unheard", cel.Bool, everything, "undefined field 'unheard'"},
		{"request.userInfo.name == ''", cel.Bool, everything, "undefined field 'name'"},
		{"'text'", cel.Bool, everything, "must evaluate to bool but got string"},
		{"1", cel.StringOrNull, everything, "must evaluate to one of [string null_type] but got int"},
		{"{}", cel.Object, everything, "must evaluate to Object but got map(dyn, dyn)"},
		{"[1]", cel.Patches, everything, "must evaluate to list(JSONPatch) but got list(int)"},
		{"[1, 'a'] == []", cel.Bool, everything, "expected type 'int' but found 'string'"},
		{"'a'.matches('(')", cel.Bool, everything, "invalid matches argument"},
		{"duration('1 fortnight') == duration('1s')", cel.Bool, everything, "invalid duration argument"},
		{"JSONPatch{unheard: 1} == JSONPatch{}", cel.Bool, everything, "undefined field 'unheard'"},
		{"[1].includes(1)", cel.Bool, everything, "undeclared reference to 'includes'"},
		{strings.Repeat("(", 300) + "1" + strings.Repeat(")", 300), cel.Any, everything, "recursion limit exceeded"},
		{"'" + strings.Repeat("a", 100_001) + "'", cel.Any, everything, "expression code point size exceeds limit"},
	} {
		x := cel.NewCompiler(false).Compile(c.source, c.want, c.in)
		require.ErrorContains(t, x.Err, c.says, "%.100s", c.source)
		budget := int64(10)
		result, err := cel.NewEvaluator(bindings(), nil).Evaluate(t.Context(), x, &budget)
		require.NoError(t, err)
		require.ErrorContains(t, result.Err, "compilation error: ")
	}
	stored := cel.NewCompiler(false).Compile("[1].includes(1)", cel.Bool, cel.Declarations{Stored: true})
	require.NoError(t, stored.Err)
}

func TestVariables_AreTypedLazyAndCached(t *testing.T) {
	t.Parallel()
	c := cel.NewCompiler(true)
	require.ErrorContains(t, c.Compile("variables.n == 1", cel.Bool, everything).Err, "undefined field 'n'")
	require.ErrorContains(t, c.Define("n", "variables.n + 1", everything).Err, "undefined field 'n'",
		"there is no recursion")
	require.NoError(t, c.Define("n", "object.spec.replicas + 1", everything).Err)
	require.NoError(t, c.Define("text", "'a' + 'b'", everything).Err)
	require.NoError(t, c.Define("list", "[1, 2]", everything).Err)
	require.NoError(t, c.Define("broken", "object.missing", everything).Err)
	require.ErrorContains(t, c.Compile("variables.text + 1 == ''", cel.Bool, everything).Err,
		"found no matching overload")
	require.ErrorContains(t, c.Compile("variables.list == ['a']", cel.Bool, everything).Err,
		"found no matching overload")

	e := cel.NewEvaluator(bindings(), c.Variables())
	budget := int64(cel.PolicyBudget)
	for source, want := range map[string]bool{
		"variables.n == 4 && variables.text == 'ab' && variables.list.sum() == 3": true,
		"variables.n == 3 && variables.broken == 1":                               false,
	} {
		result, err := e.Evaluate(t.Context(), c.Compile(source, cel.Bool, everything), &budget)
		require.NoError(t, err)
		require.Equal(t, want, result.True(), "%v", result.Err)
	}
	result, err := e.Evaluate(t.Context(), c.Compile("variables.broken == 1", cel.Bool, everything), &budget)
	require.NoError(t, err)
	require.ErrorContains(t, result.Err, `composited variable "broken" fails to evaluate: no such key: missing`)

	// The cost of a variable is charged when it is first read.
	require.NoError(t, c.Define("costly", "lists.range(1000).map(x, x + 1).size()", everything).Err)
	x := c.Compile("variables.costly == 1000", cel.Bool, everything)
	e, budget = cel.NewEvaluator(bindings(), c.Variables()), cel.PolicyBudget
	_, err = e.Evaluate(t.Context(), x, &budget)
	require.NoError(t, err)
	first := cel.PolicyBudget - budget
	require.Greater(t, first, int64(3000))
	_, err = e.Evaluate(t.Context(), x, &budget)
	require.NoError(t, err)
	require.Less(t, cel.PolicyBudget-budget-first, int64(10))
	budget = 100
	_, err = cel.NewEvaluator(bindings(), c.Variables()).Evaluate(t.Context(), x, &budget)
	require.ErrorIs(t, err, cel.ErrBudget)
}

func TestEvaluate_EndsWithTheRequest(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x := cel.NewCompiler(false).Compile("lists.range(10000).all(x, x >= 0)", cel.Bool, cel.Declarations{})
	require.NoError(t, x.Err)
	budget := int64(cel.PolicyBudget)
	result, err := cel.NewEvaluator(bindings(), nil).Evaluate(ctx, x, &budget)
	require.NoError(t, err)
	require.ErrorContains(t, result.Err, "operation interrupted")
}

func TestMutations_AreDocuments(t *testing.T) {
	t.Parallel()
	c := cel.NewCompiler(false)
	run := func(source string, want cel.Result) cel.Evaluation {
		x := c.Compile(source, want, everything)
		require.NoError(t, x.Err)
		budget := int64(cel.PolicyBudget)
		result, err := cel.NewEvaluator(bindings(), nil).Evaluate(t.Context(), x, &budget)
		require.NoError(t, err)
		require.NoError(t, result.Err)
		return result
	}
	object, err := run("Object{spec: Object.spec{n: object.spec.replicas + 1, list: [Object.spec.list{a: 'b'}], "+
		"?none: optional.none(), map: {'k': 1.5}, old: object.spec.list}}", cel.Object).ApplyConfiguration()
	require.NoError(t, err)
	require.Equal(t,
		doc{"spec": doc{"n": int64(4), "list": []any{doc{"a": "b"}}, "map": doc{"k": 1.5}, "old": []any{"x", "y"}}},
		object)
	_, err = run("Object{spec: Object.spec{a: Object.spec.b{}}}", cel.Object).ApplyConfiguration()
	require.ErrorContains(t, err,
		`type mismatch: unexpected type name "Object.spec.b", expected "Object.spec.a", which matches field name path from root Object type`)

	patch, err := run("[JSONPatch{op: 'add', path: '/a', value: Object.spec{x: 1}}, JSONPatch{op: 'move', from: "+
		"'/b', path: '/c'}, JSONPatch{op: 'add', path: '/d', value: null}, JSONPatch{op: 'add', path: '/t', "+
		"value: timestamp('2020-01-01T00:00:00Z')}]", cel.Patches).JSONPatch()
	require.NoError(t, err)
	require.JSONEq(t,
		`[{"op":"add","path":"/a","value":{"x":1}},{"op":"move","from":"/b","path":"/c"},{"op":"add","path":"/d","value":null},{"op":"add","path":"/t","value":"2020-01-01T00:00:00Z"}]`, string(patch))
}

func ExampleCompiler() {
	c := cel.NewCompiler(true)
	c.Define("limit", "object.metadata.name == 'web' ? 5 : 1", cel.Declarations{})
	x := c.Compile("object.spec.replicas <= variables.limit", cel.Bool, cel.Declarations{})
	budget := int64(cel.PolicyBudget)
	result, err := cel.NewEvaluator(bindings(), c.Variables()).Evaluate(context.Background(), x, &budget)
	fmt.Println(result.True(), err)
	fmt.Println(c.Compile("object.spec.replicas", cel.Bool, cel.Declarations{}).Err)
	// Output:
	// true <nil>
	// must evaluate to bool but got dyn
}

func BenchmarkEvaluate(b *testing.B) {
	x := cel.NewCompiler(false).Compile("object.spec.replicas <= 5", cel.Bool, cel.Declarations{})
	for b.Loop() {
		budget := int64(cel.PolicyBudget)
		if result, err := cel.NewEvaluator(bindings(), nil).Evaluate(b.Context(), x, &budget); err != nil ||
			!result.True() {
			b.Fatal(result.Err, err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		if x := cel.NewCompiler(false).Compile("object.spec.replicas <= 5 && has(object.metadata.labels)", cel.Bool,
			cel.Declarations{}); x.Err != nil {
			b.Fatal(x.Err)
		}
	}
}

// FuzzExpression compiles and evaluates any text. That must neither panic nor take long.
func FuzzExpression(f *testing.F) {
	for _, seed := range []string{
		"object.spec.replicas <= 5", "[1,2,3].all(x, x > 0)", "Object{spec: Object.spec{a: 1}}",
		"[JSONPatch{op: 'add', path: '/a', value: {'b': 1}}]",
		"quantity('1Gi').add(1).isGreaterThan(quantity('1'))", "semver('v1', true)", "ip('::1').family()",
		"cidr('::/1').masked()", "format.named('uuid').value().validate('a')",
		"authorizer.requestResource.check('get').allowed()", "'a'.findAll('(a|aa)+', 3)", "variables.v + variables.w",
		"object.?a.?b.orValue({})", "url('https://a').getQuery()",
		"lists.range(1000).map(x, lists.range(1000).sum())", "{'a': 1}.transformMap(k, v, v).exists(k, v, k == 'a')",
		"timestamp('2020-01-01T00:00:00Z').getHours()", "'%s'.format([object])",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, source string) {
		c := cel.NewCompiler(true)
		c.Define("v", "object.spec.list", everything)
		c.Define("w", source, everything)
		for _, d := range []cel.Declarations{everything, {Stored: true}} {
			x := c.Compile(source, cel.Any, d)
			budget := int64(cel.PolicyBudget)
			result, err := cel.NewEvaluator(bindings(), c.Variables()).Evaluate(t.Context(), x, &budget)
			if err != nil || result.Err != nil {
				continue
			}
			_, _ = result.Plain()
			_, _ = result.ApplyConfiguration()
			_, _ = result.JSONPatch()
		}
	})
}
