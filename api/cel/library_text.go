package cel

import (
	"net/url"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

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
	return value[*url.URL]{typ: urlType, wrapped: u, equal: func(a, b *url.URL) bool {
		return a.String() == b.String()
	}}
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
