package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
)

// delta is one place in which two versions of an object differ. An absent value is nil.
type delta struct {
	path     string
	from, to any
}

func (d delta) String() string {
	switch {
	case d.from == nil:
		return fmt.Sprintf("+ %s: %s", d.path, compact(d.to))
	case d.to == nil:
		return fmt.Sprintf("- %s: %s", d.path, compact(d.from))
	default:
		return fmt.Sprintf("~ %s: %s → %s", d.path, compact(d.from), compact(d.to))
	}
}

// compact is a value as JSON, but for plain strings, cut where it gets long.
func compact(v any) string {
	const longest = 160
	text, ok := v.(string)
	if !ok {
		encoded, err := json.Marshal(v)
		if err != nil {
			return fmt.Sprint(v)
		}
		text = string(encoded)
	}
	if runes := []rune(text); len(runes) > longest {
		return string(runes[:longest]) + "…"
	}
	return text
}

// deltas are the differences between two JSON values, in the order of their paths. The elements of a list are
// matched by the field that names them, such as a container's name or a condition's type, or else by position.
func deltas(path string, from, to any) []delta {
	if reflect.DeepEqual(from, to) {
		return nil
	}
	if before, after, ok := asMaps(from, to); ok {
		var found []delta
		for _, key := range slices.Sorted(maps.Keys(union(before, after))) {
			found = append(found, deltas(join(path, key), before[key], after[key])...)
		}
		return found
	}
	before, listed := from.([]any)
	after, both := to.([]any)
	if !listed || !both {
		return []delta{{path, from, to}}
	}
	old, now := elements(before, before, after), elements(after, before, after)
	var found []delta
	for _, key := range slices.SortedFunc(maps.Keys(union(old, now)), byPlace) {
		found = append(found, deltas(path+"["+key+"]", old[key], now[key])...)
	}
	return found
}

// asMaps returns both values as objects. An absent object is reported field by field where the other one has
// fields, so that a new label reads as a label.
func asMaps(from, to any) (before, after map[string]any, ok bool) {
	before, okBefore := from.(map[string]any)
	after, okAfter := to.(map[string]any)
	return before, after, okBefore && okAfter
}

func union(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]any{}
	}
	maps.Copy(all, b)
	return all
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// naming are the fields that name an element of a list in the Kubernetes API, the likeliest first.
var naming = []string{"name", "type", "uid", "key", "ip", "containerPort", "port"}

// elements are a list's, by a key that is unique in both versions of it.
func elements(list []any, versions ...[]any) map[string]any {
	field := ""
	for _, candidate := range naming {
		if names(candidate, versions) {
			field = candidate
			break
		}
	}
	found := make(map[string]any, len(list))
	for i, element := range list {
		key := strconv.Itoa(i)
		if field != "" {
			key = fmt.Sprint(element.(map[string]any)[field])
		}
		found[key] = element
	}
	return found
}

// byPlace orders keys such that the tenth element comes after the ninth.
func byPlace(a, b string) int {
	x, errX := strconv.Atoi(a)
	y, errY := strconv.Atoi(b)
	if errX == nil && errY == nil {
		return cmp.Compare(x, y)
	}
	return cmp.Compare(a, b)
}

// names reports whether each element of each list has the field, and no two of one list share its value.
func names(field string, lists [][]any) bool {
	for _, list := range lists {
		seen := map[any]bool{}
		for _, element := range list {
			object, ok := element.(map[string]any)
			if !ok {
				return false
			}
			value, ok := object[field]
			if !ok || seen[fmt.Sprint(value)] {
				return false
			}
			seen[fmt.Sprint(value)] = true
		}
	}
	return true
}
