package bounds

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Limits of quantities. resource.ParseQuantity writes numbers out: of "1e-999999999" it makes one of a billion digits. Its
// largest value that means anything has 19 digits before the point and 9 behind it.
const (
	// maxDigits is how many characters a quantity may have before its suffix.
	maxDigits = 128
	// maxMagnitude is how many these and the exponent may be together. The canonical form never has more.
	maxMagnitude = 2000
	// longExponent is how many digits the exponent has of quantities that SuspectQuantity looks at. Those with fewer
	// are harmless, and so is their canonical form.
	longExponent = 4
)

// ParseQuantity is resource.ParseQuantity for a text from anywhere.
func ParseQuantity(text string) (resource.Quantity, error) {
	if err := CheckQuantity(text); err != nil {
		return resource.Quantity{}, err
	}
	return resource.ParseQuantity(text)
}

// CheckQuantity refuses a text that would take too long to read as a quantity, or to calculate with. It is not an error
// here that a text is no quantity at all.
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

// SuspectQuantity reports whether there is anything in a document that CheckQuantity might refuse: a JSON string or
// number with a long exponent, or a great many digits. It costs a look at every fourth byte.
func SuspectQuantity(document []byte) bool { return suspect(document, true) }

// SuspectQuantityIn is SuspectQuantity of bytes in which a string does not show where it begins and ends, as protobuf.
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

// hasExponent reports whether the digits from start to end are the exponent of a number, and that is the whole of a
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

// delimits reports whether a byte can stand beside a JSON string's or number's text, or belongs to white space there.
func delimits(c byte) bool { return c <= ' ' || c >= 0x80 || strings.IndexByte(`":,[]{}`, c) >= 0 }

func digit(c byte) bool { return c >= '0' && c <= '9' }

func numeral(c byte) bool { return digit(c) || c == '.' }
