package cel

import (
	"encoding/base64"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

// The library of named formats: format.dns1123Label().validate(text), format.named("uuid").

type format struct {
	validate func(string) []string
	// pattern is the approximate length of a regular expression for the format, which determines its cost.
	pattern int
}

var formats = map[string]*format{
	"dns1123Label":           {nameOf(validation.NameIsDNSLabel, false), 30},
	"dns1123LabelPrefix":     {nameOf(validation.NameIsDNSLabel, true), 30},
	"dns1123Subdomain":       {nameOf(validation.NameIsDNSSubdomain, false), 60},
	"dns1123SubdomainPrefix": {nameOf(validation.NameIsDNSSubdomain, true), 60},
	"dns1035Label":           {nameOf(validation.NameIsDNS1035Label, false), 30},
	"dns1035LabelPrefix":     {nameOf(validation.NameIsDNS1035Label, true), 30},
	"qualifiedName":          {utilvalidation.IsQualifiedName, 60},
	"labelValue":             {utilvalidation.IsValidLabelValue, 40},
	"uri":                    {isURI, 1103},
	"uuid":                   {saying("does not match the UUID format", isUUID), 86},
	"byte":                   {saying("invalid base64", isBase64), 84},
	"date":                   {saying("invalid date", isDate), longestTime},
	"datetime":               {saying("invalid datetime", isDateTime), longestTime},
}

func nameOf(valid validation.ValidateNameFunc, prefix bool) func(string) []string {
	return func(text string) []string { return valid(text, prefix) }
}

func isURI(text string) []string {
	if _, err := url.ParseRequestURI(text); err != nil {
		return []string{err.Error()}
	}
	return nil
}

func saying(complaint string, is func(string) bool) func(string) []string {
	return func(text string) []string {
		if !is(text) {
			return []string{complaint}
		}
		return nil
	}
}

// OpenAPI's formats, as k8s.io/kube-openapi parses them. That package is not used, since it builds half a mebibyte of
// patterns when a program starts.

// longestTime is the length of kube-openapi's pattern for a date-time.
const longestTime = 72

var uuidPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$`)
})

func isUUID(text string) bool { return uuidPattern().MatchString(text) }

func isBase64(text string) bool {
	_, err := base64.StdEncoding.DecodeString(text)
	return err == nil && text != "" && !strings.ContainsAny(text, "\r\n")
}

func isDate(text string) bool {
	_, err := time.Parse(time.DateOnly, text)
	return err == nil
}

var timePattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})$`)
})

func isDateTime(text string) bool {
	date, clock, ok := strings.Cut(strings.ToLower(text), "t")
	return ok && isDate(date) && timePattern().MatchString(clock)
}

var formatLibrary = library{name: "kubernetes.format", functions: formatFunctions()}

func formatFunctions() map[string][]celgo.FunctionOpt {
	f := map[string][]celgo.FunctionOpt{
		"format.named": {call("format-named", args(celgo.StringType), celgo.OptionalType(formatType),
			unary(func(name string) ref.Val {
				if f, ok := formats[name]; ok {
					return types.OptionalOf(formatValue(f))
				}
				return types.OptionalNone
			}))},
		"validate": {member("format-validate", args(formatType, celgo.StringType), celgo.OptionalType(stringList),
			binary(func(f *format, text string) ref.Val {
				if complaints := f.validate(text); len(complaints) > 0 {
					return types.OptionalOf(types.NewStringList(types.DefaultTypeAdapter, complaints))
				}
				return types.OptionalNone
			}))},
	}
	for name, spec := range formats {
		f["format."+name] = []celgo.FunctionOpt{call("format."+name, nil, formatType,
			celgo.FunctionBinding(func(...ref.Val) ref.Val {
				return formatValue(spec)
			}))}
	}
	return f
}

func formatValue(f *format) ref.Val {
	return value[*format]{typ: formatType, wrapped: f, equal: func(a, b *format) bool { return a == b }}
}
