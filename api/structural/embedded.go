package structural

import (
	stdjson "encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"

	"github.com/coxswain-dev/coxswain/api/field"
)

// Coerce gives the apiVersion, kind and metadata of embedded objects the form of a typed object: it drops unknown
// fields of the metadata. Malformed fields are dropped as well if dropMalformed is true, and are an error otherwise.
// If report is true, it returns the paths of the unknown fields, sorted, and at most the first 100 that it met.
func (s *Schema) Coerce(obj map[string]any, dropMalformed, report bool) (unknown []string, err *field.Error) {
	c := coercer{dropMalformed: dropMalformed, report: report}
	if err := c.coerce(obj, s, nil); err != nil {
		return nil, err
	}
	slices.Sort(c.unknown)
	return c.unknown, nil
}

type coercer struct {
	dropMalformed, report bool
	unknown               []string
}

func (c *coercer) coerce(value any, s *Schema, path *field.Path) *field.Error {
	if s == nil || !s.embedded && !s.below.embedded {
		return nil
	}
	switch value := value.(type) {
	case map[string]any:
		if s.embedded {
			if err := c.object(value, path); err != nil {
				return err
			}
		}
		for name, v := range value {
			if below, _ := s.field(name); below != nil {
				if err := c.coerce(v, below, s.step(path, name)); err != nil {
					return err
				}
			}
		}
	case []any:
		for i, item := range value {
			if err := c.coerce(item, s.items, path.Index(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// step returns the path of a field: of a property, or of a map's entry.
func (s *Schema) step(path *field.Path, name string) *field.Path {
	if _, ok := s.properties[name]; ok {
		return path.Child(name)
	}
	return path.Key(name)
}

// object coerces the type and the metadata of one embedded object.
func (c *coercer) object(obj map[string]any, path *field.Path) *field.Error {
	for _, name := range []string{"apiVersion", "kind"} {
		value, found := obj[name]
		if _, ok := value.(string); found && !ok {
			if !c.dropMalformed {
				return field.Invalid(path.Child(name), value, "must be a string")
			}
			delete(obj, name)
		}
	}
	value, found := obj["metadata"]
	if !found {
		return nil
	}
	meta, unknown, err := ObjectMeta(value, c.dropMalformed)
	switch {
	case err != nil && c.dropMalformed:
		return nil
	case err != nil:
		return field.Invalid(path.Child("metadata"), value, err.Error())
	}
	c.note(path.Child("metadata"), unknown)
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(meta)
	if err != nil {
		return field.Invalid(path.Child("metadata"), value, err.Error())
	}
	if meta.CreationTimestamp.IsZero() {
		delete(fields, "creationTimestamp")
	}
	obj["metadata"] = fields
	return nil
}

func (c *coercer) note(path *field.Path, unknown []string) {
	for _, name := range unknown {
		if c.report && len(c.unknown) < maxUnknown {
			c.unknown = append(c.unknown, path.String()+"."+name)
		}
	}
}

// ObjectMeta decodes metadata and returns the paths of its unknown fields. If lenient is true, it decodes field by
// field and leaves out malformed ones.
func ObjectMeta(value any, lenient bool) (meta *metav1.ObjectMeta, unknown []string, err error) {
	meta = &metav1.ObjectMeta{}
	unknown, err = readMeta(value, meta)
	fields, ok := value.(map[string]any)
	if err == nil || !lenient || !ok {
		return meta, unknown, err
	}
	meta, unknown = &metav1.ObjectMeta{}, nil
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		one := map[string]any{name: fields[name]}
		if _, err := readMeta(one, &metav1.ObjectMeta{}); err == nil {
			more, _ := readMeta(one, meta)
			unknown = append(unknown, more...)
		}
	}
	return meta, unknown, nil
}

func readMeta(value any, into *metav1.ObjectMeta) (unknown []string, err error) {
	data, err := stdjson.Marshal(value)
	if err != nil {
		return nil, err
	}
	strict, err := json.UnmarshalStrict(data, into)
	for _, e := range strict {
		if f, ok := e.(json.FieldError); ok {
			unknown = append(unknown, f.FieldPath())
		}
	}
	return unknown, err
}

// ValidateEmbedded returns the errors in the apiVersion, kind and metadata of embedded objects. An update is checked
// like a create.
func (s *Schema) ValidateEmbedded(obj map[string]any) field.ErrorList {
	return validateEmbedded(obj, s, nil, nil)
}

func validateEmbedded(value any, s *Schema, path *field.Path, errs field.ErrorList) field.ErrorList {
	if s == nil || !s.embedded && !s.below.embedded || field.Enough(errs) {
		return errs
	}
	switch value := value.(type) {
	case map[string]any:
		if s.embedded {
			errs = append(errs, validateObject(value, path)...)
		}
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if below, _ := s.field(name); below != nil {
				errs = validateEmbedded(value[name], below, s.step(path, name), errs)
			}
		}
	case []any:
		for i, item := range value {
			errs = validateEmbedded(item, s.items, path.Index(i), errs)
		}
	}
	return errs
}

func validateObject(obj map[string]any, path *field.Path) (errs field.ErrorList) {
	errs = append(errs, validateType(obj, "apiVersion", path, func(version string) string {
		if _, err := schema.ParseGroupVersion(version); err != nil {
			return err.Error()
		}
		return ""
	})...)
	errs = append(errs, validateType(obj, "kind", path, func(kind string) string {
		if wrong := validation.IsDNS1035Label(strings.ToLower(kind)); len(wrong) > 0 {
			return "may have mixed case, but should otherwise match: " + strings.Join(wrong, ",")
		}
		return ""
	})...)
	value, found := obj["metadata"]
	if !found {
		return errs
	}
	meta, _, err := ObjectMeta(value, false)
	if err != nil {
		return append(errs, field.Invalid(path.Child("metadata"), value, err.Error()))
	}
	if meta.Name == "" {
		meta.Name = "fakename" // an embedded object needs no name
	}
	return append(errs, apivalidation.ValidateObjectMeta(meta, meta.Namespace != "", pathSegment,
		path.Child("metadata").Plain())...)
}

// validateType checks apiVersion or kind, the two required fields that name an object's type.
func validateType(obj map[string]any, name string, path *field.Path, wrong func(string) string) field.ErrorList {
	value, found := obj[name]
	fldPath := path.Child(name)
	if !found {
		return field.ErrorList{field.Required(fldPath, "")}
	}
	switch value, ok := value.(string); {
	case !ok:
		return field.ErrorList{field.Invalid(fldPath, obj[name], "must be a string")}
	case value == "":
		return field.ErrorList{field.Invalid(fldPath, value, "must not be empty")}
	default:
		if why := wrong(value); why != "" {
			return field.ErrorList{field.Invalid(fldPath, value, why)}
		}
	}
	return nil
}

func pathSegment(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}
