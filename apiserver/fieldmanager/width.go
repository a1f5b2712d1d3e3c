package fieldmanager

import (
	"fmt"
	"strings"
)

// maxApplied is how many members an object, or elements a list, may have in an applied configuration: assembling the
// set of its fields takes time with the square of that number.
const maxApplied = 10_000

// CheckWidth rejects a configuration with an object or a list that is too long to apply.
func CheckWidth(config map[string]any) error {
	if path, n := tooWide(config); n > 0 {
		return fmt.Errorf("%s: server-side apply takes at most %d entries, not %d", strings.TrimPrefix(path, "."),
			maxApplied, n)
	}
	return nil
}

// tooWide finds an object or a list that is longer than maxApplied. It returns its path and its length, which is 0 if
// there is none.
func tooWide(value any) (path string, n int) {
	switch v := value.(type) {
	case map[string]any:
		if len(v) > maxApplied {
			return "", len(v)
		}
		for key, member := range v {
			if path, n := tooWide(member); n > 0 {
				return "." + key + path, n
			}
		}
	case []any:
		if len(v) > maxApplied {
			return "", len(v)
		}
		for i, element := range v {
			if path, n := tooWide(element); n > 0 {
				return fmt.Sprintf("[%d]%s", i, path), n
			}
		}
	}
	return "", 0
}
