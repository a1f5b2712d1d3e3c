package responsewriter

import (
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Limits to the warnings in one response, in runes, as in kube-apiserver: if all warnings together are longer than
// maxWarnings, each is cut to maxWarning, and those beyond maxWarnings are dropped.
const (
	maxWarning  = 256
	maxWarnings = 4096
)

// MaxWarnings is how many warnings of full length one response may have.
const MaxWarnings = maxWarnings / maxWarning

// AddWarnings adds the Warning headers (RFC 7234) of a response, once for equal warnings. The text may quote a
// request's body, at any length.
func AddWarnings(h http.Header, warnings []string) {
	total := 0
	for _, text := range warnings {
		total += utf8.RuneCountInString(text)
	}
	written, seen := 0, map[string]bool{}
	for _, text := range warnings {
		if text == "" || seen[text] {
			continue
		}
		seen[text] = true
		text = strings.Map(printable, text)
		if total > maxWarnings {
			if runes := []rune(text); len(runes) > maxWarning {
				text = string(runes[:maxWarning])
			}
			if written >= maxWarnings {
				return
			}
			written += utf8.RuneCountInString(text)
		}
		if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
			h.Add("Warning", header)
		}
	}
}

// printable replaces runes that a header cannot carry.
func printable(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}
