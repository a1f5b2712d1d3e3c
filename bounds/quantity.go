package bounds

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Limits of quantities. resource.ParseQuantity expands numbers: "1e-999999999" becomes a billion digits.
// The largest meaningful value has 19 digits before the point and 9 after it.
const (
	// maxDigits limits the characters of a quantity before its suffix.
	maxDigits = 128
	// maxMagnitude limits the sum of these and the exponent. The canonical form never exceeds it.
	maxMagnitude = 2000
	// longExponent is the least number of an exponent's digits that makes a quantity suspect. Quantities
	// with fewer are harmless, and so is their canonical form.
	longExponent = 4
)

// ParseQuantity is resource.ParseQuantity for untrusted text.
func ParseQuantity(text string) (resource.Quantity, error) {
	if err := CheckQuantity(text); err != nil {
		return resource.Quantity{}, err
	}
	return resource.ParseQuantity(text)
}

// CheckQuantity rejects a text that would take too long to parse as a quantity, or to calculate with. A
// text that is no quantity at all is not an error here.
func CheckQuantity(text string) error {
	number := 0
	if text != "" && (text[0] == '+' || text[0] == '-') {
		number++
	}
	for number < len(text) && numeral(text[number]) {
		number++
	}
	if number > maxDigits {
		return fmt.Errorf("a quantity must have no more than %d digits", maxDigits)
	}
	suffix := text[number:]
	if len(suffix) <= longExponent-1 || suffix[0] != 'e' && suffix[0] != 'E' {
		return nil
	}
	exponent := strings.TrimLeft(suffix[1:], "+-")
	power := 0
	for _, c := range []byte(exponent) {
		if !digit(c) {
			return nil
		}
		if power = power*10 + int(c-'0'); number+power > maxMagnitude {
			return fmt.Errorf("a quantity's digits and exponent must not add up to more than %d", maxMagnitude)
		}
	}
	return nil
}

// SuspectQuantity reports whether a document contains anything that CheckQuantity might reject: a JSON
// string or number with a long exponent, or with very many digits. It reads every fourth byte.
func SuspectQuantity(document []byte) bool { return suspect(document, true) }

// SuspectQuantityIn is SuspectQuantity for bytes in which strings are not delimited, such as protobuf.
func SuspectQuantityIn(message []byte) bool { return suspect(message, false) }

func suspect(document []byte, delimited bool) bool {
	for i := longExponent - 1; i < len(document); i += longExponent {
		if !digit(document[i]) {
			continue
		}
		start, end := i, i+1
		for start > 0 && digit(document[start-1]) {
			start--
		}
		for end < len(document) && digit(document[end]) {
			end++
		}
		if end-start >= maxDigits/2 || end-start >= longExponent && hasExponent(document, start, end, delimited) {
			return true
		}
		i = end
	}
	return false
}

// hasExponent reports whether the digits from start to end are the exponent of a number that is a whole
// string or value.
func hasExponent(document []byte, start, end int, delimited bool) bool {
	at := start - 1
	if at >= 0 && (document[at] == '+' || document[at] == '-') {
		at--
	}
	if at < 1 || document[at]|0x20 != 'e' || !numeral(document[at-1]) {
		return false
	}
	if !delimited {
		return true
	}
	at--
	for at >= 0 && numeral(document[at]) {
		at--
	}
	if at >= 0 && (document[at] == '+' || document[at] == '-') {
		at--
	}
	return (at < 0 || delimits(document[at])) && (end == len(document) || delimits(document[end]))
}

// delimits reports whether a byte can stand beside the text of a JSON string or number, or in white space
// there.
func delimits(c byte) bool { return c <= ' ' || c >= 0x80 || strings.IndexByte(`":,[]{}`, c) >= 0 }

func digit(c byte) bool { return c >= '0' && c <= '9' }

func numeral(c byte) bool { return digit(c) || c == '.' }
