package cel

import (
	"net/url"
	"regexp"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

// The regular expression library, find and findAll, and the URL library.

var regexLibrary = library{
	name: "kubernetes.regex",
	functions: map[string][]celgo.FunctionOpt{
		"find": {member("string_find_string", args(celgo.StringType, celgo.StringType), celgo.StringType,
			celgo.BinaryBinding(
				func(text, pattern ref.Val) ref.Val { return find(nil, text, pattern) }))},
		"findAll": {
			member("string_find_all_string", args(celgo.StringType, celgo.StringType), stringList, celgo.BinaryBinding(
				func(text, pattern ref.Val) ref.Val { return findAll(nil, text, pattern) })),
			member("string_find_all_string_int", args(celgo.StringType, celgo.StringType, celgo.IntType), stringList,
				celgo.FunctionBinding(
					func(all ...ref.Val) ref.Val { return findAll(nil, all...) })),
		},
	},
	// A literal pattern is compiled once, together with the expression.
	program: []celgo.ProgramOption{celgo.OptimizeRegex(compiledOnce("find", find), compiledOnce("findAll", findAll))},
}

func compiledOnce(name string, f func(*regexp.Regexp, ...ref.Val) ref.Val) *interpreter.RegexOptimization {
	return &interpreter.RegexOptimization{
		Function: name, RegexIndex: 1,
		Factory: func(c interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
			re, err := regexp.Compile(pattern)
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

// pattern returns the first two arguments. re is the compiled second one, if it is a literal.
func pattern(re *regexp.Regexp, all []ref.Val) (string, *regexp.Regexp, ref.Val) {
	text, ok := all[0].Value().(string)
	if !ok {
		return "", nil, types.MaybeNoSuchOverloadErr(all[0])
	}
	if re != nil {
		return text, re, nil
	}
	source, ok := all[1].Value().(string)
	if !ok {
		return "", nil, types.MaybeNoSuchOverloadErr(all[1])
	}
	re, err := regexp.Compile(source)
	if err != nil {
		return "", nil, types.NewErr("Illegal regex: %v", err.Error())
	}
	return text, re, nil
}

func find(re *regexp.Regexp, all ...ref.Val) ref.Val {
	text, re, failed := pattern(re, all)
	if failed != nil {
		return failed
	}
	return types.String(re.FindString(text))
}

func findAll(re *regexp.Regexp, all ...ref.Val) ref.Val {
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
	return types.NewStringList(types.DefaultTypeAdapter, re.FindAllString(text, int(most)))
}

var urlLibrary = library{name: "kubernetes.urls", functions: map[string][]celgo.FunctionOpt{
	"url":            {call("string_to_url", args(celgo.StringType), urlType, unary(parseURL))},
	"isURL":          {call("is_url_string", args(celgo.StringType), celgo.BoolType, unary(isURL))},
	"getScheme":      {urlPart("url_get_scheme", func(u *url.URL) string { return u.Scheme })},
	"getHost":        {urlPart("url_get_host", func(u *url.URL) string { return u.Host })},
	"getHostname":    {urlPart("url_get_hostname", (*url.URL).Hostname)},
	"getPort":        {urlPart("url_get_port", (*url.URL).Port)},
	"getEscapedPath": {urlPart("url_get_escaped_path", (*url.URL).EscapedPath)},
	"getQuery": {member("url_get_query", args(urlType), celgo.MapType(celgo.StringType, stringList),
		unary(urlQuery))},
}}

func urlPart(id string, part func(*url.URL) string) celgo.FunctionOpt {
	return member(id, args(urlType), celgo.StringType, unary(func(u *url.URL) ref.Val { return types.String(part(u)) }))
}

func parseURL(text string) ref.Val {
	_, err := url.ParseRequestURI(text)
	var u *url.URL
	if err == nil {
		u, err = url.Parse(text)
	}
	if err != nil {
		return types.NewErr("URL parse error during conversion from string: %v", err)
	}
	return value[*url.URL]{typ: urlType, of: u, equal: func(a, b *url.URL) bool { return a.String() == b.String() }}
}

func isURL(text string) ref.Val {
	_, err := url.ParseRequestURI(text)
	return types.Bool(err == nil)
}

func urlQuery(u *url.URL) ref.Val {
	query := map[ref.Val]ref.Val{}
	for key, values := range u.Query() {
		query[types.String(key)] = types.NewStringList(types.DefaultTypeAdapter, values)
	}
	return types.NewRefValMap(types.DefaultTypeAdapter, query)
}
