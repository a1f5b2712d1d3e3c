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

// MaxPattern limits the instructions in the program of a regular expression. Without a limit, a pattern of 30 KB
// which repeats a letter a thousand times, three thousand times over, is compiled to 300 MB.
const MaxPattern = 10_000

const (
	// maxSource limits the bytes of a regular expression that is parsed.
	maxSource = 32 << 10
	// quick is the number of steps that are matched without a check of the context: well below a tenth of a second.
	quick = 1 << 20
	// stepsPerLook is the number of steps between two checks of the context.
	stepsPerLook = 1 << 18
)

// Pattern is a regular expression with a program of at most MaxPattern instructions. It is safe for concurrent use.
type Pattern struct {
	*regexp.Regexp
	size int64
}

// CompilePattern compiles an untrusted expression, if CheckPattern accepts it.
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

// CheckPattern returns a regular expression's PatternSize, and an error if it is too large. An expression that
// cannot be parsed is not an error here.
func CheckPattern(source string) (size int64, err error) {
	if size = PatternSize(source); size > MaxPattern {
		err = fmt.Errorf("the regular expression is too large: with its repetitions written out it has %d parts and "+
			"may have %d", size, MaxPattern)
	}
	return size, err
}

// PatternSize estimates the number of instructions in the program of a regular expression, from above: without
// counted repetitions it is twice the length. It is above MaxPattern for an expression of more than 32 KiB, and 0
// for one that cannot be parsed.
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

// Work returns the maximal number of steps of a match of the text. A step takes about ten nanoseconds.
func (p *Pattern) Work(text string) int64 { return p.size * int64(len(text)+1) }

// MatchContext does the same as MatchString, but ends early with ctx and then returns ctx's error.
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
	every int64 // runes between two checks of ctx
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
