package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/resourcelist"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/kit/warning"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// DefaultClaimSpec sets the defaults of the spec of a persistent volume claim or of a template for one.
func DefaultClaimSpec(spec *corev1.PersistentVolumeClaimSpec) {
	defaults.SetPtr(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	resourcelist.Round(spec.Resources.Requests)
	resourcelist.Round(spec.Resources.Limits)
	if ref := spec.DataSourceRef; spec.DataSource == nil && ref != nil && ptr.Deref(ref.Namespace, "") == "" {
		spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ref.APIGroup, Kind: ref.Kind, Name: ref.Name}
	} else if source := spec.DataSource; source != nil && ref == nil {
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: source.APIGroup, Kind: source.Kind,
			Name: source.Name}
	}
}

// ValidateAccessModes checks the access modes of a volume or of a claim.
func ValidateAccessModes(modes []corev1.PersistentVolumeAccessMode, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	oncePod, others := false, false
	for _, mode := range modes {
		if field.Enough(errs) {
			break
		}
		unknown := validate.OneOf(path, mode, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce,
			corev1.ReadWriteOncePod)
		errs = append(errs, unknown...)
		oncePod = oncePod || mode == corev1.ReadWriteOncePod
		others = others || (mode != corev1.ReadWriteOncePod && len(unknown) == 0)
	}
	if oncePod && others {
		errs = append(errs, field.Forbidden(path, "may not use ReadWriteOncePod with other access modes"))
	}
	return errs
}

// ValidateClaimSpec checks the spec of a persistent volume claim or of a template for one.
func ValidateClaimSpec(spec *corev1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.AccessModes) == 0 {
		errs = append(errs, field.Required(path.Child("accessModes"), "at least 1 access mode is required"))
	}
	errs = append(errs, validate.Selector(spec.Selector, path.Child("selector"))...)
	errs = append(errs, ValidateAccessModes(spec.AccessModes, path.Child("accessModes"))...)
	storage := path.Child("resources").Key(string(corev1.ResourceStorage))
	if q, ok := spec.Resources.Requests[corev1.ResourceStorage]; !ok {
		errs = append(errs, field.Required(storage, ""))
	} else if q.Sign() <= 0 {
		errs = append(errs, field.Invalid(storage, q.String(), "must be greater than zero"))
	}
	if class := ptr.Deref(spec.StorageClassName, ""); class != "" {
		errs = append(errs, validate.DnsSubdomain(path.Child("storageClassName"), class)...)
	}
	if mode := spec.VolumeMode; mode != nil {
		errs = append(errs, validate.OneOf(path.Child("volumeMode"), *mode, corev1.PersistentVolumeBlock,
			corev1.PersistentVolumeFilesystem)...)
	}
	errs = append(errs, validateClaimSources(spec, path)...)
	if class := ptr.Deref(spec.VolumeAttributesClassName, ""); class != "" {
		errs = append(errs, validate.DnsSubdomain(path.Child("volumeAttributesClassName"), class)...)
	}
	return errs
}

// validateClaimSources checks a claim's data source. There are two fields for it; the newer one may name another
// namespace.
func validateClaimSources(spec *corev1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	source, ref := spec.DataSource, spec.DataSourceRef
	check := func(name, kind, group string, fldPath *field.Path) {
		errs = append(errs, validate.Required(fldPath.Child("name"), name)...)
		errs = append(errs, validate.Required(fldPath.Child("kind"), kind)...)
		if group == "" && kind != "PersistentVolumeClaim" {
			errs = append(errs,
				field.Invalid(fldPath, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
		}
		if group != "" {
			errs = append(errs, validate.DnsSubdomain(fldPath.Child("apiGroup"), group)...)
		}
	}
	if source != nil {
		check(source.Name, source.Kind, ptr.Deref(source.APIGroup, ""), path.Child("dataSource"))
	}
	if ref == nil {
		return errs
	}
	fldPath := path.Child("dataSourceRef")
	check(ref.Name, ref.Kind, ptr.Deref(ref.APIGroup, ""), fldPath)
	namespace := ptr.Deref(ref.Namespace, "")
	if namespace != "" {
		errs = append(errs, validate.Complaints(fldPath.Child("namespace"), namespace,
			naming.NameIsDNSLabel(namespace, false))...)
	}
	switch {
	case source == nil:
	case namespace != "":
		errs = append(errs, field.Invalid(path, path.Child("dataSource"),
			"may not be specified when dataSourceRef.namespace is specified"))
	case !ptr.Equal(source.APIGroup, ref.APIGroup) || source.Kind != ref.Kind || source.Name != ref.Name:
		errs = append(errs, field.Invalid(path, path.Child("dataSource"), "must match dataSourceRef"))
	}
	return errs
}

// WarnClaimSpec warns about a request for a fraction of a byte.
func WarnClaimSpec(spec *corev1.PersistentVolumeClaimSpec, path *field.Path) []string {
	var w warning.List
	if q, ok := spec.Resources.Requests[corev1.ResourceStorage]; ok && q.MilliValue()%1000 != 0 {
		w.Add(path.Child("resources", "requests").Key(string(corev1.ResourceStorage)),
			"fractional byte value %q is invalid, must be an integer", q.String())
	}
	return w
}
