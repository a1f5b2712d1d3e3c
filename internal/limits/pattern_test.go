package limits

import (
	"context"
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// patterns are typical of real ones.
var patterns = []string{"", "^a+$", "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", `(?i)\pL{3,}|x{2}y{0,}`, "a{1000}",
	"(a{10}){10}", `^(\d{1,3}\.){3}\d{1,3}(/(\d{1,2}))?$`, "^$|(?:a|b|cd|ef)*?", `\b[^\s]{1,253}\b`, "(((a)))", "a{0}",
	"(a?){9}"}

func TestPatternSize_IsAboutThatOfTheProgram(t *testing.T) {
	t.Parallel()
	for _, source := range append(patterns, strings.Repeat("(abc|d)e*", 50), strings.Repeat("(x{100}){10}", 9)) {
		tree, err := syntax.Parse(source, syntax.Perl)
		require.NoError(t, err)
		program, err := syntax.Compile(tree.Simplify())
		require.NoError(t, err)
		const ends = 3 // instructions that each program has
		assert.LessOrEqual(t, int64(len(program.Inst))/2-ends, PatternSize(source), source)
		assert.LessOrEqual(t, programSize(tree), 3*int64(len(program.Inst)), source)
	}
	assert.Zero(t, PatternSize("(a{2}"))
}

func TestCompilePattern_RefusesALargeProgram(t *testing.T) {
	t.Parallel()
	for _, source := range patterns {
		p, err := CompilePattern(source)
		require.NoError(t, err)
		require.Equal(t, source, p.String())
	}
	for _, source := range []string{strings.Repeat("(a{1000})", 11), strings.Repeat("(a{0,1000}){1}", 3_000),
		strings.Repeat("a", 10_001), "[" + strings.Repeat("a", 40_000) + "]"} {
		_, err := CompilePattern(source)
		require.ErrorContains(t, err, "too large")
	}
	_, err := CompilePattern("(")
	var invalid *syntax.Error
	require.ErrorAs(t, err, &invalid)
}

func TestPattern_MatchContext(t *testing.T) {
	t.Parallel()
	texts := []string{"", "a", "aaa", "a-b.c", "192.168.0.1/24", "ä€x", "\xff\xfe", "xxy\n"}
	for _, source := range patterns {
		p, err := CompilePattern(source)
		require.NoError(t, err)
		for _, text := range texts {
			want := regexp.MustCompile(source).MatchString(text)
			is, err := p.MatchContext(t.Context(), text)
			require.NoError(t, err)
			assert.Equal(t, want, is, "%q %q", source, text)
			slow := &Pattern{p.Regexp, 1 << 30} // it is read rune by rune
			is, err = slow.MatchContext(t.Context(), text)
			require.NoError(t, err)
			assert.Equal(t, want, is, "%q %q", source, text)
		}
	}
}

func TestPattern_MatchContext_EndsWithTheContext(t *testing.T) {
	t.Parallel()
	p, err := CompilePattern("(x{0,100}){0,10}y")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = p.MatchContext(ctx, strings.Repeat("x", 10_000_000)) // this would take minutes
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func BenchmarkCompilePattern(b *testing.B) {
	for name, source := range map[string]string{"label": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
		"refused": strings.Repeat("(a{1000})", maxSource/9)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_, _ = CompilePattern(source)
			}
		})
	}
}
