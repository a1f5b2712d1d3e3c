// Package near finds the names that a mistyped one may stand for.
//
// A tour. [Distance] counts the edits between two names, up to a limit. [Names] returns the closest of some names, the
// closest first. Both bound their work for names of any length and number: a server's users choose the names of
// objects.
package near

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
)

const (
	// maxLength limits the length of names in bytes. Longer names are near none. Names of objects have at most 253.
	maxLength = 256
	// maxNames limits the number of names that are compared.
	maxNames = 10000
	// maxResults is the maximum number of results.
	maxResults = 3
)

// Distance counts the edits that turn a into b: insertions, deletions and substitutions of a byte, and exchanges of two
// neighbors (Damerau–Levenshtein, restricted). It returns limit+1 if there are more, or if a name is too long. limit
// must not be negative.
func Distance(a, b string, limit int) int {
	if a == b {
		return 0
	}
	if len(a) > maxLength || len(b) > maxLength || len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	// the rows of the table for the two previous bytes of a, and for this one
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		least := i
		for j := 1; j <= len(b); j++ {
			substitution := 1
			if a[i-1] == b[j-1] {
				substitution = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+substitution)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
			least = min(least, row[j])
		}
		if least > limit {
			return limit + 1
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], limit+1)
}

// tolerance returns the number of edits that a name of a length may have: a third of its bytes, one to three.
func tolerance(length int) int { return min(max(1, length/3), 3) }

// Names returns the names that are closest to a mistyped one: up to three, the closest first, then by name. If none is
// close, it returns names that begin with the mistyped one and a separator, as the names of pods begin with their
// owners'. Upper and lower case are equal.
func Names(typed string, names []string) []string {
	typed = strings.ToLower(typed)
	if typed == "" || len(typed) > maxLength {
		return nil
	}
	type candidate struct {
		name     string
		distance int
	}
	limit := tolerance(len(typed))
	var found []candidate
	for _, name := range names[:min(len(names), maxNames)] {
		if len(name) > maxLength {
			continue
		}
		lower := strings.ToLower(name)
		switch d := Distance(typed, lower, limit); {
		case d <= limit && name != "":
			found = append(found, candidate{name, d})
		case len(typed) > 1 && strings.HasPrefix(lower, typed) && !isWord(rune(lower[len(typed)])):
			found = append(found, candidate{name, limit + 1})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var closest []string
	for _, c := range found {
		if len(closest) < maxResults && !slices.Contains(closest, c.name) && c.distance <= found[0].distance+1 {
			closest = append(closest, c.name)
		}
	}
	return closest
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// List joins names: "a, b or c".
func List(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}
