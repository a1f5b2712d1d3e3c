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

// delta is one difference between two versions of an object.
type delta struct {
	path     string
	old, new any // nil if absent
}

func (d delta) String() string {
	switch {
	case d.old == nil:
		return fmt.Sprintf("+ %s: %s", d.path, compact(d.new))
	case d.new == nil:
		return fmt.Sprintf("- %s: %s", d.path, compact(d.old))
	default:
		return fmt.Sprintf("~ %s: %s → %s", d.path, compact(d.old), compact(d.new))
	}
}

// compact returns a value as JSON, or a string as it is. Long texts are cut.
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

// deltas returns the differences between two JSON values, ordered by path. The elements of a list are matched by a
// field that identifies them, such as a container's name or a condition's type, or else by position.
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

// asMaps returns both values as objects, and whether they are objects.
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

// naming are the fields that identify an element of a list in the Kubernetes API, the likeliest first.
var naming = []string{"name", "type", "uid", "key", "ip", "containerPort", "port"}

// elements returns the elements of a list by a key that is unique in both of its versions.
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

// byPlace orders keys; positions are ordered as numbers, so that 10 comes after 9.
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
