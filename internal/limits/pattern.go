package limits

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// MaxPattern is how many instructions the program of a regular expression may have. Without a bound a pattern of 30 KB,
// which repeats a letter a thousand times, three thousand times over, is compiled to 300 MB.
const MaxPattern = 10_000

const (
	// maxSource is how many bytes a regular expression may have to be parsed at all.
	maxSource = 32 << 10
	// quick is how many steps are matched without a look at the context: well below a tenth of a second.
	quick = 1 << 20
	// stepsPerLook is how many steps are made between two looks.
	stepsPerLook = 1 << 18
)

// Pattern is a regular expression whose program has at most MaxPattern instructions. It is safe for concurrent use.
type Pattern struct {
	*regexp.Regexp
	size int64
}

// CompilePattern is regexp.Compile for an untrusted expression.
func CompilePattern(source string) (*Pattern, error) {
	size, err := CheckPattern(source)
	if err != nil {
		return nil, err
	}
	re, err := regexp.Compile(source)
	if err != nil {
		return nil, err
	}
	return &Pattern{re, size}, nil
}

// CheckPattern returns a regular expression's PatternSize, and an error if it is too large. One that can't be parsed is
// not an error here.
func CheckPattern(source string) (size int64, err error) {
	if size = PatternSize(source); size > MaxPattern {
		err = fmt.Errorf("the regular expression is too large: with its repetitions written out it has %d parts and "+
			"may have %d", size, MaxPattern)
	}
	return size, err
}

// PatternSize is how many instructions the program of a regular expression has, at most and roughly: without counted
// repetitions twice its length. It is above MaxPattern for one of more than 32 KiB, and 0 for one that can't be parsed.
func PatternSize(source string) int64 {
	if len(source) > maxSource || len(source) <= MaxPattern/2 && !strings.Contains(source, "{") {
		return 2 * int64(len(source))
	}
	tree, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return 0
	}
	return programSize(tree)
}

func programSize(tree *syntax.Regexp) int64 {
	size := int64(1)
	switch tree.Op {
	case syntax.OpLiteral:
		size = int64(len(tree.Rune))
	case syntax.OpCapture:
		size = 2
	}
	for _, sub := range tree.Sub {
		size += programSize(sub)
	}
	if tree.Op == syntax.OpRepeat {
		size *= int64(max(tree.Min, tree.Max, 1)) // which the parser bounds
	}
	return size
}

// Work is how many steps a match of the text takes at most. A step takes some ten nanoseconds.
func (p *Pattern) Work(text string) int64 { return p.size * int64(len(text)+1) }

// MatchContext is MatchString, which ends early when ctx does, with ctx's error.
func (p *Pattern) MatchContext(ctx context.Context, text string) (bool, error) {
	if p.Work(text) <= quick {
		return p.MatchString(text), nil
	}
	r := &reader{ctx: ctx, text: text, every: max(1, stepsPerLook/p.size)}
	return p.MatchReader(r), r.err
}

// reader reads a text until its context ends.
type reader struct {
	ctx   context.Context
	text  string
	every int64 // runes between two looks at ctx
	read  int64
	err   error
}

// ReadRune implements io.RuneReader.
func (r *reader) ReadRune() (rune, int, error) {
	if r.read++; r.read%r.every == 0 {
		r.err = r.ctx.Err()
	}
	if r.err != nil || r.text == "" {
		return 0, 0, io.EOF
	}
	c, n := utf8.DecodeRuneInString(r.text)
	r.text = r.text[n:]
	return c, n, nil
}
