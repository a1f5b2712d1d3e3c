// Package naming has apimachinery's checks of names (and of percentages), under the same names but without their
// regular expressions: plainly valid names are recognized by their bytes, and all others are passed to apimachinery.
// Each function returns the reasons why a name is invalid, or nil.
package naming

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

const (
	maxSubdomain = utilvalidation.DNS1123SubdomainMaxLength
	maxLabel     = utilvalidation.DNS1123LabelMaxLength
	maxValue     = utilvalidation.LabelValueMaxLength
	maxPort      = 15
)

func IsDNS1123Label(s string) []string {
	if isLabel(s) {
		return nil
	}
	return utilvalidation.IsDNS1123Label(s)
}

func IsDNS1123Subdomain(s string) []string {
	if isSubdomain(s) {
		return nil
	}
	return utilvalidation.IsDNS1123Subdomain(s)
}

// NameIsDNSLabel and NameIsDNSSubdomain check an object's name. prefix is true for a generateName, which gets a
// suffix.
func NameIsDNSLabel(s string, prefix bool) []string {
	if isLabel(trimDash(s, prefix)) {
		return nil
	}
	return validation.NameIsDNSLabel(s, prefix)
}

func NameIsDNSSubdomain(s string, prefix bool) []string {
	if isSubdomain(trimDash(s, prefix)) {
		return nil
	}
	return validation.NameIsDNSSubdomain(s, prefix)
}

// trimDash removes a trailing dash from a prefix, where it is allowed.
func trimDash(s string, prefix bool) string {
	if prefix {
		return strings.TrimSuffix(s, "-")
	}
	return s
}

// IsQualifiedName checks the key of a label and names of the same form.
func IsQualifiedName(s string) []string {
	domain, name, qualified := strings.Cut(s, "/")
	if !qualified {
		domain, name = "", s
	}
	if (!qualified || isSubdomain(domain)) && isValue(name) {
		return nil
	}
	return utilvalidation.IsQualifiedName(s)
}

func IsValidLabelValue(s string) []string {
	if s == "" || isValue(s) {
		return nil
	}
	return utilvalidation.IsValidLabelValue(s)
}

func IsConfigMapKey(s string) []string {
	if 0 < len(s) && len(s) <= maxSubdomain && all(s, inValue) && s[0] != '.' {
		return nil
	}
	return utilvalidation.IsConfigMapKey(s)
}

func IsValidPortName(s string) []string {
	if len(s) <= maxPort && isLabel(s) && !digit(s[0]) && !strings.Contains(s, "--") {
		return nil
	}
	return utilvalidation.IsValidPortName(s)
}

func IsValidPercent(s string) []string {
	if number, found := strings.CutSuffix(s, "%"); found && number != "" && all(number, digit) {
		return nil
	}
	return utilvalidation.IsValidPercent(s)
}

func isLabel(s string) bool {
	return 0 < len(s) && len(s) <= maxLabel && all(s, inLabel) && s[0] != '-' && s[len(s)-1] != '-'
}

// isSubdomain checks the labels and the total length. A single label may have the total length.
func isSubdomain(s string) bool {
	before := byte('.')
	for i := range len(s) {
		c := s[i]
		if !inLabel(c) && c != '.' || before == '.' && (c == '-' || c == '.') || before == '-' && c == '.' {
			return false
		}
		before = c
	}
	return before != '.' && before != '-' && len(s) <= maxSubdomain
}

func isValue(s string) bool {
	return 0 < len(s) && len(s) <= maxValue && all(s, inValue) && alphanumeric(s[0]) && alphanumeric(s[len(s)-1])
}

func all(s string, in func(byte) bool) bool {
	for i := range len(s) {
		if !in(s[i]) {
			return false
		}
	}
	return true
}

func digit(c byte) bool        { return '0' <= c && c <= '9' }
func inLabel(c byte) bool      { return 'a' <= c && c <= 'z' || digit(c) || c == '-' }
func alphanumeric(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || digit(c) }
func inValue(c byte) bool      { return alphanumeric(c) || c == '-' || c == '_' || c == '.' }
