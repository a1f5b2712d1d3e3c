package apiextensions

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"

	"github.com/coxswain-dev/coxswain/api/field"
)

// versions checks each version, and that they are consistent.
func (v *validation) versions(fldPath *field.Path) (errs field.ErrorList) {
	spec, path := v.spec, fldPath.Child("versions")
	hasStatus := map[string]bool{} // of the first version with a name
	stored := 0
	for i := range spec.Versions {
		if field.Enough(errs) {
			break
		}
		version := &spec.Versions[i]
		if version.Storage {
			stored++
		}
		if _, found := hasStatus[version.Name]; !found {
			hasStatus[version.Name] = hasStatusSubresource(version.Subresources) ||
				hasStatusSubresource(spec.Subresources)
		}
		if why := isLabel(version.Name); why != "" {
			errs = append(errs, field.Invalid(path.Index(i).Child("name"), version.Name, why))
		}
		errs = append(errs, v.version(version, v.schemas[i], hasStatus[version.Name], path.Index(i))...)
	}
	if field.Enough(errs) {
		return errs
	}
	if len(hasStatus) < len(spec.Versions) {
		errs = append(errs, field.Invalid(path, shown(spec.Versions), "must contain unique version names"))
	}
	if stored != 1 {
		errs = append(errs, field.Invalid(path, shown(spec.Versions),
			"must have exactly one version marked as storage version"))
	}
	if why := isLabel(spec.Version); spec.Version != "" && why != "" {
		errs = append(errs, field.Invalid(fldPath.Child("version"), spec.Version, why))
	}
	return errs
}

// shown returns the versions for an error, without their schemas: in the internal type, schemas take a hundred times
// as much space as in the client's document.
func shown(versions []internal.CustomResourceDefinitionVersion) []internal.CustomResourceDefinitionVersion {
	const maxShown = 20
	versions = slices.Clone(versions[:min(len(versions), maxShown)])
	for i := range versions {
		versions[i].Schema = nil
	}
	return versions
}

func hasStatusSubresource(s *internal.CustomResourceSubresources) bool {
	return s != nil && s.Status != nil
}

// hasAnyStatus reports whether any version has a status subresource.
func hasAnyStatus(spec *internal.CustomResourceDefinitionSpec) bool {
	has := hasStatusSubresource(spec.Subresources)
	for i := range spec.Versions {
		has = has || hasStatusSubresource(spec.Versions[i].Subresources)
	}
	return has
}

func (v *validation) version(version *internal.CustomResourceDefinitionVersion, s *schema, hasStatus bool,
	path *field.Path) (errs field.ErrorList) {
	for _, why := range deprecationComplaints(version.Deprecated, version.DeprecationWarning) {
		errs = append(errs, field.Invalid(path.Child("deprecationWarning"), version.DeprecationWarning, why))
	}
	errs = append(errs, v.schema(s, hasStatus, v.unchanged[version.Name], path.Child("schema"))...)
	errs = append(errs, validateSubresources(version.Subresources, path.Child("subresources"))...)
	errs = append(errs, validateColumns(version.AdditionalPrinterColumns, path.Child("additionalPrinterColumns"))...)
	if len(version.SelectableFields) == 0 {
		return errs
	}
	fields := path.Child("selectableFields")
	if s == nil || s.root == nil {
		return append(errs, field.Invalid(fields, "",
			"may only be set when `version.schema.openAPIV3Schema` is not included"))
	}
	return append(errs, v.selectableFields(version.SelectableFields, s, version.Name, fields, path)...)
}

func deprecationComplaints(deprecated bool, warning *string) (complaints []string) {
	const longest = 256
	const unprintable = "must only contain printable UTF-8 characters"
	switch {
	case warning == nil:
		return nil
	case !deprecated:
		return []string{"can only be set for deprecated versions"}
	}
	if len(*warning) > longest {
		complaints = append(complaints, fmt.Sprintf("must be <= %d characters long", longest))
	}
	if *warning == "" {
		complaints = append(complaints, "must not be an empty string")
	}
	if i := strings.IndexFunc(*warning, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		complaints = append(complaints, fmt.Sprintf(unprintable+"; non-printable character found at index %d", i))
	}
	if !utf8.ValidString(*warning) {
		complaints = append(complaints, unprintable)
	}
	return complaints
}

func validateSubresources(s *internal.CustomResourceSubresources, fldPath *field.Path) (errs field.ErrorList) {
	if s == nil || s.Scale == nil {
		return nil
	}
	check := func(name, path, detail string, under ...string) {
		errs = append(errs, pathUnder(path, fldPath.Child("scale", name), detail, under...)...)
	}
	required := func(name, path, detail, under string) {
		if path == "" {
			errs = append(errs, field.Required(fldPath.Child("scale", name), ""))
			return
		}
		check(name, path, detail, under)
	}
	required("specReplicasPath", s.Scale.SpecReplicasPath, "should be a json path under .spec", ".spec.")
	required("statusReplicasPath", s.Scale.StatusReplicasPath, "should be a json path under .status", ".status.")
	if p := s.Scale.LabelSelectorPath; p != nil && *p != "" {
		check("labelSelectorPath", *p, "should be a json path under either .spec or .status", ".spec.", ".status.")
	}
	return errs
}

// pathUnder checks that a path begins with one of the allowed prefixes.
func pathUnder(path string, fldPath *field.Path, detail string, under ...string) field.ErrorList {
	if errs := validatePath(path, fldPath); len(errs) > 0 {
		return errs
	}
	for _, prefix := range under {
		if strings.HasPrefix(path, prefix) {
			return nil
		}
	}
	return field.ErrorList{field.Invalid(fldPath, path, detail)}
}

func validatePath(path string, fldPath *field.Path) field.ErrorList {
	if !strings.HasPrefix(path, ".") {
		return field.ErrorList{field.Invalid(fldPath, path, "must be a simple json path starting with .")}
	}
	return nil
}

const (
	columnTypes   = "boolean,date,integer,number,string"
	columnFormats = "byte,date,date-time,double,float,int32,int64,password"
)

// among reports whether a comma-separated list has a word.
func among(list, word string) bool { return strings.Contains(","+list+",", ","+word+",") }

func validateColumns(columns []internal.CustomResourceColumnDefinition, fldPath *field.Path) (errs field.ErrorList) {
	for i := range columns {
		if field.Enough(errs) {
			break
		}
		c, path := &columns[i], fldPath.Index(i)
		if c.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), ""))
		}
		switch {
		case c.Type == "":
			errs = append(errs, field.Required(path.Child("type"), "must be one of "+columnTypes))
		case !among(columnTypes, c.Type):
			errs = append(errs, field.Invalid(path.Child("type"), c.Type, "must be one of "+columnTypes))
		}
		if c.Format != "" && !among(columnFormats, c.Format) {
			errs = append(errs, field.Invalid(path.Child("format"), c.Format, "must be one of "+columnFormats))
		}
		if c.JSONPath == "" {
			errs = append(errs, field.Required(path.Child("JSONPath"), ""))
		} else {
			errs = append(errs, validatePath(c.JSONPath, path.Child("JSONPath"))...)
		}
	}
	return errs
}

// maxSelectableFields limits the selectable fields of a version.
const maxSelectableFields = 8

// selectableFields checks the selectable fields of a version. version is "" for the fields that all versions share.
func (v *validation) selectableFields(fields []internal.SelectableField, s *schema, version string, fldPath,
	around *field.Path) (errs field.ErrorList) {
	if s.root != nil && s.root.err != nil {
		return field.ErrorList{field.Invalid(around.Child("schema", "openAPIV3Schema"), "", s.root.err.Error())}
	}
	unique := map[string]bool{}
	for i := range fields {
		if field.Enough(errs) {
			return errs
		}
		source, path := fields[i].JSONPath, fldPath.Index(i).Child("jsonPath")
		if source == "" {
			errs = append(errs, field.Required(path, ""))
			continue
		}
		found, target, err := s.root.find(source, false)
		if err != nil {
			errs = append(errs, field.Invalid(path, source, fmt.Sprintf("is an invalid path: %v", err)))
			continue
		}
		name := found.String()
		if name == "metadata" || strings.HasPrefix(name, "metadata.") || strings.HasPrefix(name, "metadata[") {
			errs = append(errs, field.Invalid(path, source, "must not point to fields in metadata"))
		}
		if target == nil || target.Type != "string" && target.Type != "boolean" && target.Type != "integer" {
			errs = append(errs, field.Invalid(path, source, "must point to a field of type string, boolean or "+
				"integer. Enum string fields and strings with formats are allowed."))
		}
		if unique[name] {
			errs = append(errs, field.Duplicate(path, source))
		}
		unique[name] = true
	}
	if len(unique) > maxSelectableFields && !v.manyFields[version] {
		errs = append(errs, field.TooMany(fldPath, len(unique), maxSelectableFields))
	}
	return errs
}
