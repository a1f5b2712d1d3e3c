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

// regexLibrary has Kubernetes' find and findAll, and replaces the language's own matches, which would compile a
// pattern of any size and could not be interrupted. The cost of a match is bounded before it begins.
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

// regexFunction takes a text, a pattern and possibly more. re is the compiled pattern if the pattern is a literal.
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

// pattern returns the text and the pattern from a function's arguments. It returns an error if a match could cost more
// than an expression may.
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

// findAllFor limits the time of findAll, which may read all of the text between any two matches.
const findAllFor = time.Second

func findAll(re *limits.Pattern, all ...ref.Val) ref.Val {
	text, re, failed := pattern(re, all)
	if failed != nil {
		return failed
	}
	limit := int64(-1)
	if len(all) == 3 {
		var ok bool
		if limit, ok = all[2].Value().(int64); !ok {
			return types.MaybeNoSuchOverloadErr(all[2])
		}
	}
	found, ok := allMatches(re, text, limit)
	if !ok {
		return types.NewErr("findAll takes longer than %v", findAllFor)
	}
	return types.NewStringList(types.DefaultTypeAdapter, found)
}

// allMatches returns the result of FindAllString. It returns false if that takes too long.
func allMatches(re *limits.Pattern, text string, limit int64) (found []string, inTime bool) {
	type enough struct{}
	began := time.Now()
	defer func() {
		if p := recover(); p != nil && p != (enough{}) {
			panic(p)
		}
	}()
	// This is the only function for all matches that can be stopped between two of them.
	re.ReplaceAllStringFunc(text, func(match string) string {
		if inTime = time.Since(began) < findAllFor; !inTime || int64(len(found)) == limit {
			panic(enough{})
		}
		found = append(found, match)
		return ""
	})
	return found, true
}

// patternSize returns the length of a pattern for the cost: the size of its program, if that is longer than its text.
// Kubernetes counts only the text, so that a thousand repetitions cost as little as one.
func patternSize(source string) uint64 {
	cached := &patternSizes[maphash.String(patternSeed, source)%uint64(len(patternSizes))]
	pattern := cached.Load()
	if pattern == nil || pattern.source != source {
		pattern = &sizedPattern{source, uint64(max(limits.PatternSize(source)/2, int64(len(source))))}
		if len(source) <= cachedPattern {
			cached.Store(pattern)
		}
	}
	return pattern.size
}

type sizedPattern struct {
	source string
	size   uint64
}

// patternSizes caches the sizes of recently counted patterns with at most cachedPattern bytes.
var (
	patternSizes [64]atomic.Pointer[sizedPattern]
	patternSeed  = maphash.MakeSeed()
)

const cachedPattern = 1 << 10

// patternLiterals checks literal patterns when an expression is compiled.
type patternLiterals struct{}

// Name implements celgo.ASTValidator.
func (patternLiterals) Name() string { return "cel.validator.matches" }

// Validate implements celgo.ASTValidator. Like the language's own validator, it checks the first argument.
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
