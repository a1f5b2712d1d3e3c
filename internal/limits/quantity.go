package limits

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Limits of quantities. resource.ParseQuantity expands numbers: "1e-999999999" becomes a billion digits.
// The largest meaningful value has 19 digits before the point and 9 after it.
const (
	// maxDigits limits the characters of a quantity before its suffix.
	maxDigits = 128
	// maxMagnitude limits the sum of the number of digits and the exponent. The canonical form never exceeds it.
	maxMagnitude = 2000
	// longExponent is the least number of an exponent's digits that makes a quantity suspect. Quantities
	// with fewer are harmless, and so is their canonical form.
	longExponent = 4
)

// ParseQuantity calls resource.ParseQuantity after CheckQuantity, for untrusted text.
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

// Suffixes end at E, 10^18. resource.Quantity writes a multiple of 10^21 wrongly if it was read with a suffix, or
// as digits alone: it drops the rest of its scale, so that 2000E becomes 2. If it was read with an exponent it is
// written correctly: 2e21.

// CheckWritable rejects the texts that CheckQuantity rejects, and quantities that a decoder reads but cannot write
// again.
func CheckWritable(text string) error {
	if err := CheckQuantity(text); err != nil {
		return err
	}
	if q, err := resource.ParseQuantity(text); err == nil && !writable(q) {
		return errors.New("multiples of 10^21 must be written with an exponent, such as 1e21")
	}
	return nil
}

// Writable returns an equal quantity with a text of the same value. Sums need it, since they may exceed the range
// of suffixes.
func Writable(q resource.Quantity) resource.Quantity {
	if writable(q) {
		return q
	}
	q = q.DeepCopy()
	return *resource.NewDecimalQuantity(*q.AsDec(), resource.DecimalExponent)
}

// writable reports whether the text of a quantity has its value. That holds for all values that fit an int64.
func writable(q resource.Quantity) bool {
	if math.Abs(q.AsApproximateFloat64()) < 1<<62 {
		return true
	}
	number, suffix := q.CanonicalizeBytes(nil)
	written, err := resource.ParseQuantity(string(number) + string(suffix))
	return err == nil && written.Cmp(q) == 0
}

// SuspectQuantity reports whether a document contains anything that CheckQuantity or CheckWritable might reject: a
// JSON string or number with a long exponent, with a suffix that makes it 10^21 or more, or with very many digits.
// It reads every fourth byte.
func SuspectQuantity(document []byte) bool { return suspect(document, true) }

// SuspectQuantityIn does the same as SuspectQuantity for bytes without delimiters around strings, such as protobuf.
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
		if end-start >= maxDigits/2 || end-start >= longExponent &&
			(hasExponent(document, start, end, delimited) || isHuge(document, start, end, delimited)) {
			return true
		}
		i = end
	}
	return false
}

// hasExponent reports whether the digits from start to end are the exponent of a number that is a whole
// string or value.
func hasExponent(document []byte, start, end int, delimited bool) bool {
	i := start - 1
	if i >= 0 && (document[i] == '+' || document[i] == '-') {
		i--
	}
	if i < 1 || document[i]|0x20 != 'e' || !numeral(document[i-1]) {
		return false
	}
	if !delimited {
		return true
	}
	i--
	for i >= 0 && numeral(document[i]) {
		i--
	}
	return stands(document, i+1, end)
}

// unwritable is the least number of digits of a number of 10^21 or more.
const unwritable = 22

// isHuge reports whether the digits from start to end begin a number of 10^21 or more, with its fraction and
// suffix, that is a whole string or value.
func isHuge(document []byte, start, end int, delimited bool) bool {
	digits := end - start
	if end < len(document) && document[end] == '.' {
		for end++; end < len(document) && digit(document[end]); end++ {
		}
	}
	if end < len(document) {
		if power := strings.IndexByte("kMGTPE", document[end]) + 1; power > 0 {
			digits += 3 * power
			end++
		}
	}
	return digits >= unwritable && (!delimited || stands(document, start, end))
}

// stands reports whether the number from start to end, which may have a sign before it, is delimited.
func stands(document []byte, start, end int) bool {
	before := start - 1
	if before >= 0 && (document[before] == '+' || document[before] == '-') {
		before--
	}
	return (before < 0 || delimits(document[before])) && (end == len(document) || delimits(document[end]))
}

// delimits reports whether a byte can stand beside the text of a JSON string or number, or in white space
// there.
func delimits(c byte) bool { return c <= ' ' || c >= 0x80 || strings.IndexByte(`":,[]{}`, c) >= 0 }

func digit(c byte) bool { return c >= '0' && c <= '9' }

func numeral(c byte) bool { return digit(c) || c == '.' }
