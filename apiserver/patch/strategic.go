package patch

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// ErrTooLong is the error for a strategic merge patch that merges longer lists than the server has time for.
var ErrTooLong = errors.New("a strategic merge patch cannot merge lists so long: use a JSON or a merge patch")

// maxPairs limits the number of comparisons of elements for a patch. The library takes about 150 ns for each, and
// goes on when the request is over: lists of 9,000 elements would take most of a minute.
const maxPairs = 8 << 20

// Strategic applies a strategic merge patch to an object. Lists are merged by the keys that the tags of into's type
// name.
func Strategic(doc, patch []byte, into any) (patched []byte, err error) {
	defer func() {
		if fault := recover(); fault != nil { // a merge key that is an object
			patched, err = nil, fmt.Errorf("apply a strategic merge patch: %v", fault)
		}
	}()
	schema, err := strategicpatch.NewPatchMetaFromStruct(into)
	if err != nil {
		return nil, err
	}
	object, changes := map[string]any{}, map[string]any{}
	if json.Unmarshal(doc, &object) != nil || json.Unmarshal(patch, &changes) != nil {
		return nil, mergepatch.ErrBadJSONDoc
	}
	if pairs(object, changes, schema) > maxPairs {
		return nil, ErrTooLong
	}
	object, err = strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(object, changes, schema)
	if err != nil {
		return nil, err
	}
	return json.Marshal(object)
}

// pairs estimates the number of comparisons of elements when the changes are merged into an object. Each merged
// element is compared with all elements that are or will be in its list, and all are sorted.
func pairs(object, changes map[string]any, schema strategicpatch.LookupPatchMeta) (n int) {
	for key, value := range changes {
		switch value := value.(type) {
		case map[string]any:
			old, ok := object[key].(map[string]any)
			below, _, err := schema.LookupPatchMetadataForStruct(key)
			if ok && err == nil {
				n += pairs(old, value, below)
			}
		case []any:
			n += pairsOfList(object, key, value, schema)
		}
		if n > maxPairs {
			break
		}
	}
	return n
}

// pairsOfList returns the estimate of pairs for one list, or for the list of a directive, such as
// "$setElementOrder/ports".
func pairsOfList(object map[string]any, key string, list []any, schema strategicpatch.LookupPatchMeta) int {
	directive, name, _ := strings.Cut(key, "/")
	if !strings.HasPrefix(key, "$") {
		name = key
	}
	old, ok := object[name].([]any)
	all := len(list) + len(old)
	switch directive {
	case "$deleteFromPrimitiveList":
		return 0
	case "$setElementOrder", "$retainKeys":
		return all * all
	}
	below, meta, err := schema.LookupPatchMetadataForSlice(key)
	if !ok || err != nil || !slices.Contains(meta.GetPatchStrategies(), "merge") {
		return 0 // the list replaces the old one
	}
	n := all * all
	byKey, seen, again := map[any]map[string]any{}, map[any]bool{}, 0
	for _, element := range old {
		if e, ok := element.(map[string]any); ok {
			byKey[keyOf(e[meta.GetPatchMergeKey()])] = e
		}
	}
	for _, element := range list {
		e, ok := element.(map[string]any)
		if !ok || n > maxPairs {
			continue
		}
		key := keyOf(e[meta.GetPatchMergeKey()])
		if seen[key] {
			again++
		}
		seen[key] = true
		n += pairs(byKey[key], e, below)
	}
	if again > 0 { // elements with the key of an earlier one are merged with it, so that its lists grow
		longest := elements(list) + elements(old)
		n += again * longest * longest
	}
	return n
}

// elements counts the elements of all lists in a value.
func elements(value any) (n int) {
	switch value := value.(type) {
	case map[string]any:
		for _, below := range value {
			n += elements(below)
		}
	case []any:
		n = len(value)
		for _, below := range value {
			n += elements(below)
		}
	}
	return n
}

// keyOf returns the value of a merge key, a string or a number, as the key of a map. It returns nil for other values.
func keyOf(value any) any {
	switch value.(type) {
	case map[string]any, []any:
		return nil
	}
	return value
}
