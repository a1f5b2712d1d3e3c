package kubectllite

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clires "k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/util/jsonpath"

	"github.com/coxswain-dev/coxswain/internal/limits"
)

// sortInfos orders objects by the value at a JSONPath; objects without the value come first. It orders the rows of each
// table by their objects.
func sortInfos(infos []*clires.Info, by string) ([]*clires.Info, error) {
	if by == "" {
		return infos, nil
	}
	path, err := relaxedJSONPath(by)
	if err != nil {
		path = by
	}
	var objects []*clires.Info
	for _, info := range infos {
		obj, ok := info.Object.(*unstructured.Unstructured)
		if !ok || !isTable(obj) {
			objects = append(objects, info)
			continue
		}
		if err := sortRows(obj, path); err != nil {
			return nil, err
		}
	}
	if len(objects) < 2 {
		return infos, nil
	}
	if len(objects) < len(infos) {
		return nil, fmt.Errorf("sorting is not supported on mixed Table and non-Table object lists")
	}
	err = sortBy(objects, path, func(info *clires.Info) map[string]any {
		obj, _ := info.Object.(*unstructured.Unstructured)
		if obj == nil {
			return nil
		}
		return obj.Object
	})
	return objects, err
}

func sortRows(table *unstructured.Unstructured, path string) error {
	rows, _, err := unstructured.NestedFieldNoCopy(table.Object, "rows")
	if err != nil {
		return err
	}
	list, _ := rows.([]any)
	return sortBy(list, path, func(row any) map[string]any {
		fields, _ := row.(map[string]any)
		obj, _ := fields["object"].(map[string]any)
		return obj
	})
}

// sortBy orders items by the first value that path finds in their content.
func sortBy[T any](items []T, path string, content func(T) map[string]any) error {
	parser := jsonpath.New("sorting").AllowMissingKeys(true)
	if err := parser.Parse(path); err != nil {
		return fmt.Errorf("sorting error: %v", err)
	}
	type keyed struct {
		key  any
		item T
	}
	all, anyFound := make([]keyed, len(items)), false
	for i, item := range items {
		values, err := parser.FindResults(content(item))
		if err != nil {
			return fmt.Errorf("sorting error: %v", err)
		}
		all[i].item = item
		if len(values) > 0 && len(values[0]) > 0 {
			all[i].key, anyFound = valueOf(values[0][0]), true
		}
	}
	if len(items) > 0 && !anyFound {
		return fmt.Errorf("couldn't find any field with path %q in the list of objects", path)
	}
	var bad error
	slices.SortStableFunc(all, func(a, b keyed) int {
		order, err := compare(a.key, b.key)
		if err != nil && bad == nil {
			bad = fmt.Errorf("Field %s is an unsortable type: %v", path, err) //nolint:staticcheck // kubectl's words
		}
		return order
	})
	for i := range all {
		items[i] = all[i].item
	}
	return bad
}

func valueOf(v reflect.Value) any {
	if !v.IsValid() || !v.CanInterface() {
		return nil
	}
	return v.Interface()
}

// compare orders two JSON values: numbers by size, strings as quantities if both are quantities ("9m" before "1"),
// otherwise by their bytes. An absent value comes first.
func compare(a, b any) (int, error) {
	switch {
	case a == nil && b == nil:
		return 0, nil
	case a == nil:
		return -1, nil
	case b == nil:
		return 1, nil
	}
	switch x := a.(type) {
	case int64:
		if y, ok := b.(int64); ok {
			return cmp.Compare(x, y), nil
		}
		if y, ok := b.(float64); ok {
			return cmp.Compare(float64(x), y), nil
		}
	case float64:
		if y, ok := b.(float64); ok {
			return cmp.Compare(x, y), nil
		}
		if y, ok := b.(int64); ok {
			return cmp.Compare(x, float64(y)), nil
		}
	case string:
		if y, ok := b.(string); ok {
			return compareText(x, y), nil
		}
	}
	return 0, fmt.Errorf("%T and %T", a, b)
}

func compareText(a, b string) int {
	qa, errA := limits.ParseQuantity(a)
	qb, errB := limits.ParseQuantity(b)
	if errA == nil && errB == nil {
		return qa.Cmp(qb)
	}
	return strings.Compare(a, b)
}
