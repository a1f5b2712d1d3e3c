package podspec

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// The fields of a pod that the downward API provides as environment variables and in files.
var (
	envFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",
		"spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"}
	// shownFields are all the fields that the downward API provides. Each use supports some of them.
	shownFields = append([]string{"spec.host", "spec.restartPolicy", "spec.schedulerName", "status.phase"},
		append(envFields, fileFields...)...)
	fileFields = []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace",
		"metadata.uid"}

	shownResources = []string{"limits.cpu", "limits.ephemeral-storage", "limits.memory",
		"requests.cpu", "requests.ephemeral-storage", "requests.memory"}
)

func validateEnv(vars []corev1.EnvVar, volumes map[string]*corev1.VolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range vars {
		if field.Enough(errs) {
			break
		}
		v, idxPath := &vars[i], path.Index(i)
		if v.Name == "" {
			errs = append(errs, field.Required(idxPath.Child("name"), ""))
		} else {
			errs = append(errs, validate.Complaints(idxPath.Child("name"), v.Name,
				utilvalidation.IsRelaxedEnvVarName(v.Name))...)
		}
		if v.ValueFrom != nil {
			errs = append(errs, validateEnvSource(v, volumes, idxPath.Child("valueFrom"))...)
		}
	}
	return errs
}

func validateEnvSource(v *corev1.EnvVar, volumes map[string]*corev1.VolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	from, sources := v.ValueFrom, 0
	if from.FieldRef != nil {
		sources++
		errs = append(errs, validateFieldRef(from.FieldRef, envFields, path.Child("fieldRef"))...)
	}
	if from.ResourceFieldRef != nil {
		sources++
		errs = append(errs, validateResourceRef(from.ResourceFieldRef, false, path.Child("resourceFieldRef"))...)
	}
	if ref := from.ConfigMapKeyRef; ref != nil {
		sources++
		errs = append(errs, validateKeyRef(ref.Name, ref.Key, path.Child("configMapKeyRef"))...)
	}
	if ref := from.SecretKeyRef; ref != nil {
		sources++
		errs = append(errs, validateKeyRef(ref.Name, ref.Key, path.Child("secretKeyRef"))...)
	}
	if ref := from.FileKeyRef; ref != nil {
		sources++
		errs = append(errs, validateFileKeyRef(ref, volumes, path.Child("fileKeyRef"))...)
	}
	switch {
	case sources == 0:
		errs = append(errs, field.Invalid(path, "", "must specify one of: `fieldRef`, `resourceFieldRef`, "+
			"`configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case v.Value != "":
		errs = append(errs, field.Invalid(path, "", "may not be specified when `value` is not empty"))
	case sources > 1:
		errs = append(errs, field.Invalid(path, "", "may not have more than one field specified at a time"))
	}
	return errs
}

func validateKeyRef(name, key string, path *field.Path) field.ErrorList {
	errs := validate.DnsSubdomain(path.Child("name"), name)
	if key == "" {
		return append(errs, field.Required(path.Child("key"), ""))
	}
	return append(errs, validate.Complaints(path.Child("key"), key, naming.IsConfigMapKey(key))...)
}

func validateFileKeyRef(ref *corev1.FileKeySelector, volumes map[string]*corev1.VolumeSource,
	path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ref.VolumeName == "" {
		errs = append(errs, field.Required(path.Child("volumeName"), ""))
	} else if v := volumes[ref.VolumeName]; v == nil {
		errs = append(errs, field.NotFound(path.Child("volumeName"), ref.VolumeName))
	} else if v.EmptyDir == nil {
		errs = append(errs, field.Invalid(path.Child("volumeName"), ref.VolumeName,
			"referenced volume must be of type emptyDir"))
	}
	if ref.Key == "" {
		errs = append(errs, field.Required(path.Child("key"), ""))
	} else {
		errs = append(errs, validate.Complaints(path.Child("key"), ref.Key,
			utilvalidation.IsRelaxedEnvVarName(ref.Key))...)
	}
	if ref.Path == "" {
		return append(errs, field.Required(path.Child("path"), ""))
	}
	return append(errs, validate.RelativePath(path.Child("path"), ref.Path)...)
}

func validateFieldRef(ref *corev1.ObjectFieldSelector, allowed []string, path *field.Path) field.ErrorList {
	if ref.APIVersion == "" {
		return field.ErrorList{field.Required(path.Child("apiVersion"), "")}
	}
	fldPath := path.Child("fieldPath")
	if ref.FieldPath == "" {
		return field.ErrorList{field.Required(fldPath, "")}
	}
	base, key, subscripted := subscript(ref.FieldPath)
	switch {
	case subscripted && base == "metadata.annotations":
		return validate.Complaints(path, strings.ToLower(key), naming.IsQualifiedName(strings.ToLower(key)))
	case subscripted && base == "metadata.labels":
		return validate.Complaints(path, key, naming.IsQualifiedName(key))
	case subscripted:
		return field.ErrorList{field.Invalid(fldPath, ref.FieldPath,
			"error converting fieldPath: field label does not support subscript: "+ref.FieldPath)}
	case !slices.Contains(shownFields, ref.FieldPath):
		return field.ErrorList{field.Invalid(fldPath, ref.FieldPath,
			"error converting fieldPath: field label not supported: "+ref.FieldPath)}
	}
	return validate.OneOf(fldPath, ref.FieldPath, allowed...)
}

// subscript splits metadata.labels['key'].
func subscript(path string) (base, key string, ok bool) {
	base, rest, found := strings.Cut(path, "['")
	if !found || !strings.HasSuffix(rest, "']") {
		return path, "", false
	}
	return base, strings.TrimSuffix(rest, "']"), true
}

func validateResourceRef(ref *corev1.ResourceFieldSelector, inVolume bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	_, kind, _ := strings.Cut(ref.Resource, ".")
	huge := strings.HasPrefix(ref.Resource, "limits.hugepages-") ||
		strings.HasPrefix(ref.Resource, "requests.hugepages-")
	supported := huge || slices.Contains(shownResources, ref.Resource)
	switch {
	case inVolume && ref.ContainerName == "":
		errs = append(errs, field.Required(path.Child("containerName"), ""))
	case ref.Resource == "":
		errs = append(errs, field.Required(path.Child("resource"), ""))
	case !supported:
		errs = append(errs, field.NotSupported(path.Child("resource"), ref.Resource, shownResources))
	}
	if ref.Divisor.IsZero() || !supported {
		return errs
	}
	allowed, spoken := []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}, kind
	say := strings.Join(allowed, ", ")
	switch {
	case kind == "cpu":
		allowed, say = []string{"1m", "1"}, "1m and 1"
	case huge:
		spoken = "hugepages"
	case kind == "ephemeral-storage":
		spoken = "local ephemeral storage"
	}
	if !slices.Contains(allowed, ref.Divisor.String()) {
		errs = append(errs, field.Invalid(path.Child("divisor"), ref.Resource, "only divisor's values "+say+
			" are supported with the "+spoken+" resource"))
	}
	return errs
}

func validateEnvFrom(sources []corev1.EnvFromSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, s := range sources {
		if field.Enough(errs) {
			break
		}
		idxPath, count := path.Index(i), 0
		if s.Prefix != "" {
			errs = append(errs, validate.Complaints(idxPath.Child("prefix"), s.Prefix,
				utilvalidation.IsRelaxedEnvVarName(s.Prefix))...)
		}
		if s.ConfigMapRef != nil {
			count++
			errs = append(errs, nameOf(idxPath.Child("configMapRef", "name"), s.ConfigMapRef.Name)...)
		}
		if s.SecretRef != nil {
			count++
			errs = append(errs, nameOf(idxPath.Child("secretRef", "name"), s.SecretRef.Name)...)
		}
		switch {
		case count == 0:
			errs = append(errs, field.Invalid(path, "", "must specify one of: `configMapRef` or `secretRef`"))
		case count > 1:
			errs = append(errs, field.Invalid(path, "", "may not have more than one field specified at a time"))
		}
	}
	return errs
}

// nameOf checks a required name of another object, or a prefix of a name.
func nameOf(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return validate.Complaints(path, name, naming.NameIsDNSSubdomain(name, true))
}
