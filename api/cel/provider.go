package cel

import (
	"strings"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// The names of the types with fields that the checker knows. Their values are maps.
const (
	namespaceName = "kubernetes.Namespace"
	requestName   = "kubernetes.AdmissionRequest"
	variablesName = "kubernetes.variables"
)

// fields are the fields of one struct type.
type fields map[string]*celgo.Type

var (
	stringList = celgo.ListType(celgo.StringType)
	stringMap  = celgo.MapType(celgo.StringType, celgo.StringType)
)

// structs are the types of request and namespaceObject, as kube-apiserver declares them.
var structs = map[string]fields{
	requestName: {
		"kind":            celgo.ObjectType("kubernetes.GroupVersionKind"),
		"requestKind":     celgo.ObjectType("kubernetes.GroupVersionKind"),
		"resource":        celgo.ObjectType("kubernetes.GroupVersionResource"),
		"requestResource": celgo.ObjectType("kubernetes.GroupVersionResource"),
		"subResource":     celgo.StringType, "requestSubResource": celgo.StringType,
		"name": celgo.StringType, "namespace": celgo.StringType, "operation": celgo.StringType,
		"userInfo": celgo.ObjectType("kubernetes.UserInfo"),
		"dryRun":   celgo.BoolType, "options": celgo.DynType,
	},
	"kubernetes.GroupVersionKind": {"group": celgo.StringType, "version": celgo.StringType,
		"kind": celgo.StringType},
	"kubernetes.GroupVersionResource": {"group": celgo.StringType, "version": celgo.StringType,
		"resource": celgo.StringType},
	"kubernetes.UserInfo": {
		"username": celgo.StringType, "uid": celgo.StringType, "groups": stringList,
		"extra": celgo.MapType(celgo.StringType, stringList),
	},
	deviceName: deviceFields,
	namespaceName: {
		"metadata": celgo.ObjectType("kubernetes.NamespaceMetadata"),
		"spec":     celgo.ObjectType("kubernetes.NamespaceSpec"),
		"status":   celgo.ObjectType("kubernetes.NamespaceStatus"),
	},
	"kubernetes.NamespaceMetadata": {
		"name": celgo.StringType, "generateName": celgo.StringType, "namespace": celgo.StringType,
		"labels": stringMap, "annotations": stringMap, "UID": celgo.StringType,
		"creationTimestamp": celgo.TimestampType, "deletionTimestamp": celgo.TimestampType,
		"deletionGracePeriodSeconds": celgo.IntType, "generation": celgo.IntType,
		"resourceVersion": celgo.StringType, "finalizers": stringList,
	},
	"kubernetes.NamespaceSpec": {"finalizers": stringList},
	"kubernetes.NamespaceStatus": {"conditions": celgo.ListType(celgo.ObjectType("kubernetes.NamespaceCondition")),
		"phase": celgo.StringType},
	"kubernetes.NamespaceCondition": {
		"status": celgo.StringType, "type": celgo.StringType, "lastTransitionTime": celgo.TimestampType,
		"message": celgo.StringType, "reason": celgo.StringType,
	},
}

// structProvider provides struct types to the checker, by their fields. Their values are maps. Expressions cannot
// create such values.
type structProvider struct {
	types.Provider
	fieldsOf func(name string) (fields map[string]*celgo.Type, ok bool)
}

// FindStructType implements types.Provider.
func (p *structProvider) FindStructType(name string) (*types.Type, bool) {
	if _, ok := p.fieldsOf(name); ok {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return p.Provider.FindStructType(name)
}

// FindStructFieldNames implements types.Provider.
func (p *structProvider) FindStructFieldNames(name string) ([]string, bool) {
	if _, ok := p.fieldsOf(name); ok {
		return nil, false
	}
	return p.Provider.FindStructFieldNames(name)
}

// FindStructFieldType implements types.Provider.
func (p *structProvider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if f, ok := p.fieldsOf(name); ok {
		t, ok := f[field]
		return &types.FieldType{Type: t}, ok
	}
	return p.Provider.FindStructFieldType(name, field)
}

// NewValue implements types.Provider.
func (p *structProvider) NewValue(name string, values map[string]ref.Val) ref.Val {
	if _, ok := p.fieldsOf(name); ok {
		return types.NewErr("unknown type '%s'", name)
	}
	return p.Provider.NewValue(name, values)
}

// provider also provides the variables of a policy, which grow during compilation, the shapes of objects, and the
// types of mutations.
type provider struct {
	structProvider
	Declarations
	variables fields
}

func newProvider(base types.Provider, d Declarations, variables fields) *provider {
	p := &provider{structProvider: structProvider{Provider: base}, Declarations: d, variables: variables}
	p.structProvider.fieldsOf = p.fieldsOf
	return p
}

func (p *provider) fieldsOf(name string) (map[string]*celgo.Type, bool) {
	if name == variablesName && p.variables != nil {
		return p.variables, true
	}
	for _, shape := range []*Shape{p.Object, p.Param} {
		if shape == nil {
			continue
		}
		if f, ok := shape.fields(name); ok {
			return f, true
		}
	}
	f, ok := structs[name]
	return f, ok
}

func isObject(name string) bool { return name == "Object" || strings.HasPrefix(name, "Object.") }

// FindStructType implements types.Provider.
func (p *provider) FindStructType(name string) (*types.Type, bool) {
	if p.Patch && (isObject(name) || name == "JSONPatch") {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return p.structProvider.FindStructType(name)
}

// FindStructFieldNames implements types.Provider.
func (p *provider) FindStructFieldNames(name string) ([]string, bool) {
	switch {
	case p.Patch && isObject(name):
		return nil, true // any field
	case p.Patch && name == "JSONPatch":
		return []string{"op", "from", "path", "value"}, true
	}
	return p.structProvider.FindStructFieldNames(name)
}

// FindStructFieldType implements types.Provider.
func (p *provider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	switch {
	case p.Patch && isObject(name):
		return &types.FieldType{Type: types.DynType}, true
	case p.Patch && name == "JSONPatch":
		switch field {
		case "op", "from", "path":
			return &types.FieldType{Type: types.StringType}, true
		case "value":
			return &types.FieldType{Type: types.DynType}, true
		}
		return nil, false
	}
	return p.structProvider.FindStructFieldType(name, field)
}

// NewValue implements types.Provider.
func (p *provider) NewValue(name string, values map[string]ref.Val) ref.Val {
	switch {
	case p.Patch && isObject(name):
		return &objectValue{typ: types.NewObjectType(name), fields: values}
	case p.Patch && name == "JSONPatch":
		return newPatch(values)
	}
	return p.structProvider.NewValue(name, values)
}
