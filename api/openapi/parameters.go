package openapi

import (
	"cmp"
	"reflect"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// parameter is a parameter in a request's path or query.
type parameter struct {
	name, description string
	// kind is the JSON type.
	kind string
	// inPath parameters are required. All others are optional.
	inPath bool
}

// queryOf returns the query parameters of an options type, except the ones named in omit. It reads them from the type,
// so that names and descriptions are Kubernetes' own.
func queryOf(options any, omit ...string) []parameter {
	var params []parameter
	t := reflect.TypeOf(options)
	docs := swaggerDoc(t)
	for f := range t.Fields() {
		tag := parseTag(f)
		if tag.skip || tag.inline || slices.Contains(omit, tag.name) {
			continue
		}
		params = append(params, parameter{name: tag.name, description: docs[tag.name], kind: queryKind(f.Type)})
	}
	return sorted(params)
}

// queryKind returns the type of one value of a parameter. A list is passed by repeating the parameter.
func queryKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return queryKind(t.Elem())
	case reflect.Bool:
		return "boolean"
	case reflect.Int64:
		return "integer"
	}
	return "string"
}

// sorted returns the parameters sorted by name, without duplicates.
func sorted(params ...[]parameter) []parameter {
	all := slices.Concat(params...)
	slices.SortStableFunc(all, func(a, b parameter) int { return cmp.Compare(a.name, b.name) })
	return slices.CompactFunc(all, func(a, b parameter) bool { return a.name == b.name })
}

// Parameters behind a feature gate that is off by default in Kubernetes are omitted.
const (
	unsafeDelete  = "ignoreStoreReadErrorWithClusterBreakingPotential"
	shardSelector = "shardSelector"
)

var (
	paramPretty = parameter{
		name: "pretty", kind: "string",
		description: "If 'true', then the output is pretty printed.",
	}
	paramNamespace = parameter{
		name: "namespace", kind: "string", inPath: true,
		description: "object name and auth scope, such as for teams and projects",
	}
)

func paramName(kind string) parameter {
	return parameter{name: "name", kind: "string", inPath: true, description: "name of the " + kind}
}

// query has the parameters of each action.
type query struct{ get, list, create, update, patch, delete, deleteCollection []parameter }

// queries returns the parameters of all resources. They are shared.
var queries = sync.OnceValue(func() query {
	list := queryOf(metav1.ListOptions{}, shardSelector)
	del := queryOf(metav1.DeleteOptions{}, "preconditions", unsafeDelete)
	return query{
		get:    queryOf(metav1.GetOptions{}),
		list:   list,
		create: queryOf(metav1.CreateOptions{}),
		update: queryOf(metav1.UpdateOptions{}),
		patch:  queryOf(metav1.PatchOptions{}),
		delete: del,
		deleteCollection: slices.DeleteFunc(sorted(list, del), func(p parameter) bool {
			return p.name == "watch" || p.name == "allowWatchBookmarks"
		}),
	}
})
