package cel_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api/cel"
)

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"'abc'.matches('b')", "matches('abc', '^a')", "!'abc'.matches('^b')",
		"'x1'.matches(object.spec.list[0] + '[0-9]')", "!matches('y', object.spec.list[0])"} {
		got, err := evaluate(t, source, everything)
		require.NoError(t, err, source)
		require.Equal(t, true, got, source)
	}
	_, err := evaluate(t, "'a'.matches(object.spec.list[0] + '(')", everything)
	require.ErrorContains(t, err, "error parsing regexp: missing closing ): `x(`")
}

// onText evaluates an expression with a text as its object.
func onText(t testing.TB, source, text string) (result any, cost int64, err error) {
	t.Helper()
	x := cel.NewCompiler(false).Compile(source, cel.Any, everything)
	require.NoError(t, x.Err)
	budget := int64(cel.PolicyBudget)
	e, err := cel.NewEvaluator(cel.Bindings{Object: document(text)}, nil).Evaluate(t.Context(), x, &budget)
	if err == nil {
		result, err = e.Plain()
	}
	return result, cel.PolicyBudget - budget, err
}

func TestFindAll_MatchesGosFindAll(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"", "a", "a*", "a|", "^a", "(a|aa)+?", `\b`, "[^a]*", "$"} {
		for _, text := range []string{"", "a", "baaac", "ä aa €", "aaaa"} {
			got, _, err := onText(t, "object.findAll('"+strings.ReplaceAll(pattern, `\`, `\\`)+"')", text)
			require.NoError(t, err)
			want := []any{}
			for _, match := range regexp.MustCompile(pattern).FindAllString(text, -1) {
				want = append(want, match)
			}
			require.Equal(t, want, got, "%q %q", pattern, text)
		}
	}
	for source, want := range map[string][]any{"object.findAll('.', 0)": {}, "object.findAll('.', 2)": {"a", "b"},
		"object.findAll('.', 9)": {"a", "b", "c"}, "object.findAll('.', -1)": {"a", "b", "c"}} {
		got, _, err := onText(t, source, "abc")
		require.NoError(t, err)
		require.Equal(t, want, got, source)
	}
}

// TestRegex_IsBounded: each of these would take minutes or a gigabyte.
func TestRegex_IsBounded(t *testing.T) {
	t.Parallel()
	const tooLarge, tooLong = "the regular expression is too large", "cost"
	huge, text := strings.Repeat("(a{1000})", 3_000), strings.Repeat("a", 300_000)
	for _, c := range []struct{ object, source, want string }{
		{huge, "'a'.matches(object)", tooLarge},
		{huge, "matches('a', object + '(b{10}){10}')", tooLarge},
		{huge, "'a'.find(object) == ''", tooLarge},
		{huge, "'a'.findAll(object) == []", tooLarge},
		{text, "object.matches('(a{0,100}){0,10}b')", tooLong},
		{text, "matches(object, '(a{0,100})' + '{0,10}b')", tooLong},
		{text, "object.find('(a{0,100}){0,10}b') == ''", tooLong},
		{text, "object.findAll('(a{0,100}){0,10}b') == []", tooLong},
		{text, "object.findAll('[^b]*b|[^c]') == []", "findAll takes longer than 1s"},
	} {
		_, _, err := onText(t, c.source, c.object)
		require.ErrorContains(t, err, c.want, c.source)
	}
	for _, source := range []string{"''.matches('" + huge + "')", "matches('', '" + huge + "')"} {
		x := cel.NewCompiler(false).Compile(source, cel.Bool, everything)
		require.Error(t, x.Err)
		if strings.HasPrefix(source, "''") {
			require.ErrorContains(t, x.Err, "invalid matches argument")
		}
	}
}

// TestRegex_CostFollowsTheProgram: a thousand repetitions cost more than one. A pattern without repetitions costs as
// much as in Kubernetes.
func TestRegex_CostFollowsTheProgram(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("a", 999)
	_, plain, err := onText(t, "object.matches('^[a-c]+$')", text)
	require.NoError(t, err)
	require.Equal(t, int64(1+100*2), plain)
	_, repeated, err := onText(t, "object.matches('^[a-c]{1,999}$')", text)
	require.NoError(t, err)
	require.Greater(t, repeated, 50*plain)
}

func BenchmarkMatches(b *testing.B) {
	for name, source := range map[string]string{
		"literal": "object.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",
		"made":    "object.matches('^' + '[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",
		"findAll": "object.findAll('[a-z]+').size() == 3",
	} {
		b.Run(name, func(b *testing.B) {
			x := cel.NewCompiler(false).Compile(source, cel.Bool, everything)
			require.NoError(b, x.Err)
			e := cel.NewEvaluator(cel.Bindings{Object: document("web-of-things")}, nil)
			for b.Loop() {
				budget := int64(cel.PolicyBudget)
				if result, err := e.Evaluate(b.Context(), x, &budget); err != nil || !result.True() {
					b.Fatal(err, result.Err)
				}
			}
		})
	}
}
