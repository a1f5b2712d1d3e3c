package cel

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"

	"github.com/coxswain-dev/coxswain/internal/limits"
)

// regexLibrary is Kubernetes' find and findAll, and the language's own matches, which would compile a pattern of any
// size and could not be interrupted. What a match may cost is bounded before it begins.
var regexLibrary = library{
	name: "kubernetes.regex",
	functions: map[string][]celgo.FunctionOpt{
		overloads.Matches: {
			celgo.Overload(overloads.Matches, args(celgo.StringType, celgo.StringType), celgo.BoolType),
			celgo.MemberOverload(overloads.MatchesString, args(celgo.StringType, celgo.StringType), celgo.BoolType),
			celgo.SingletonFunctionBinding(func(all ...ref.Val) ref.Val { return matches(nil, all...) }),
		},
		"find": {member("string_find_string", args(celgo.StringType, celgo.StringType), celgo.StringType,
			regexBinding(find))},
		"findAll": {
			member("string_find_all_string", args(celgo.StringType, celgo.StringType), stringList,
				regexBinding(findAll)),
			member("string_find_all_string_int", args(celgo.StringType, celgo.StringType, celgo.IntType), stringList,
				regexBinding(findAll)),
		},
	},
	// A literal pattern is compiled once, together with the expression.
	program: []celgo.ProgramOption{celgo.OptimizeRegex(
		compiledOnce(overloads.Matches, overloads.Matches, matches),
		compiledOnce(overloads.Matches, overloads.MatchesString, matches),
		compiledOnce("find", "", find), compiledOnce("findAll", "", findAll))},
}

// regexFunction is a function of a text, a pattern and perhaps more. re is the compiled pattern, if it is a literal.
type regexFunction func(re *limits.Pattern, all ...ref.Val) ref.Val

func regexBinding(f regexFunction) celgo.OverloadOpt {
	return celgo.FunctionBinding(func(all ...ref.Val) ref.Val { return f(nil, all...) })
}

func compiledOnce(name, overload string, f regexFunction) *interpreter.RegexOptimization {
	return &interpreter.RegexOptimization{
		Function: name, OverloadID: overload, RegexIndex: 1,
		Factory: func(c interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
			re, err := limits.CompilePattern(pattern)
			if err != nil {
				return nil, err
			}
			return interpreter.NewCall(c.ID(), c.Function(), c.OverloadID(), c.Args(), func(all ...ref.Val) ref.Val {
				if len(all) < 2 {
					return types.NoSuchOverloadErr()
				}
				return f(re, all...)
			}), nil
		},
	}
}

// pattern returns the text and the pattern of a function's arguments. A match that would cost more than an expression
// may is an error.
func pattern(re *limits.Pattern, all []ref.Val) (string, *limits.Pattern, ref.Val) {
	text, ok := all[0].Value().(string)
	if !ok {
		return "", nil, types.MaybeNoSuchOverloadErr(all[0])
	}
	if re == nil {
		source, ok := all[1].Value().(string)
		if !ok {
			return "", nil, types.MaybeNoSuchOverloadErr(all[1])
		}
		var err error
		if re, err = limits.CompilePattern(source); err != nil {
			return "", nil, types.NewErr("Illegal regex: %v", err.Error())
		}
	}
	if matching(uint64(len(text)), patternSize(re.String())) > PerCallLimit {
		return "", nil, types.NewErr("a text of %d bytes is too long for so large a regular expression", len(text))
	}
	return text, re, nil
}

func matches(re *limits.Pattern, all ...ref.Val) ref.Val {
	text, re, failed := pattern(re, all)
	if failed != nil {
		return failed
	}
	return types.Bool(re.MatchString(text))
}

func find(re *limits.Pattern, all ...ref.Val) ref.Val {
	text, re, failed := pattern(re, all)
	if failed != nil {
		return failed
	}
	return types.String(re.FindString(text))
}

// findAllFor is how long findAll may take: between any two matches it may have read all of the text.
const findAllFor = time.Second

func findAll(re *limits.Pattern, all ...ref.Val) ref.Val {
	text, re, failed := pattern(re, all)
	if failed != nil {
		return failed
	}
	most := int64(-1)
	if len(all) == 3 {
		var ok bool
		if most, ok = all[2].Value().(int64); !ok {
			return types.MaybeNoSuchOverloadErr(all[2])
		}
	}
	found, ok := allMatches(re, text, most)
	if !ok {
		return types.NewErr("findAll takes longer than %v", findAllFor)
	}
	return types.NewStringList(types.DefaultTypeAdapter, found)
}

// allMatches is FindAllString, unless that takes too long.
func allMatches(re *limits.Pattern, text string, most int64) (found []string, inTime bool) {
	type enough struct{}
	began := time.Now()
	defer func() {
		if p := recover(); p != nil && p != (enough{}) {
			panic(p)
		}
	}()
	// Of the functions that find all matches this alone can be stopped between two.
	re.ReplaceAllStringFunc(text, func(match string) string {
		if inTime = time.Since(began) < findAllFor; !inTime || int64(len(found)) == most {
			panic(enough{})
		}
		found = append(found, match)
		return ""
	})
	return found, true
}

// patternSize is what counts as a pattern's length: that of its program, if it is longer than its text. Kubernetes
// counts the text alone, and so a thousand repetitions as little as one.
func patternSize(source string) uint64 {
	cached := &patternSizes[maphash.String(patternSeed, source)%uint64(len(patternSizes))]
	known := cached.Load()
	if known == nil || known.source != source {
		known = &sizedPattern{source, uint64(max(limits.PatternSize(source)/2, int64(len(source))))}
		if len(source) <= cachedPattern {
			cached.Store(known)
		}
	}
	return known.size
}

type sizedPattern struct {
	source string
	size   uint64
}

// patternSizes are the sizes of patterns that were counted lately, of cachedPattern bytes at most.
var (
	patternSizes [64]atomic.Pointer[sizedPattern]
	patternSeed  = maphash.MakeSeed()
)

const cachedPattern = 1 << 10

// patternLiterals checks literal patterns when an expression is compiled.
type patternLiterals struct{}

// Name implements celgo.ASTValidator.
func (patternLiterals) Name() string { return "cel.validator.matches" }

// Validate implements celgo.ASTValidator. As in the language's own check, a pattern is the first argument.
func (patternLiterals) Validate(_ *celgo.Env, _ celgo.ValidatorConfig, a *ast.AST, issues *celgo.Issues) {
	for _, call := range ast.MatchDescendants(ast.NavigateAST(a), ast.FunctionMatcher(overloads.Matches)) {
		args := call.AsCall().Args()
		if len(args) == 0 || args[0].Kind() != ast.LiteralKind {
			continue
		}
		source, ok := args[0].AsLiteral().Value().(string)
		if _, err := limits.CompilePattern(source); !ok || err != nil {
			issues.ReportErrorAtID(args[0].ID(), "invalid %s argument", overloads.Matches)
		}
	}
}
