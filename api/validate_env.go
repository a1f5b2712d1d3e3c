package api

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What the downward API can show of a pod, as environment variables and as files.
var (
	envFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",
		"spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"}
	fileFields = []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"}

	shownResources = []string{"limits.cpu", "limits.ephemeral-storage", "limits.memory",
		"requests.cpu", "requests.ephemeral-storage", "requests.memory"}
)

func validateEnv(vars []corev1.EnvVar, volumes map[string]*corev1.VolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range vars {
		v, at := &vars[i], path.Index(i)
		if v.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, invalid(at.Child("name"), v.Name, utilvalidation.IsRelaxedEnvVarName(v.Name))...)
		}
		if v.ValueFrom != nil {
			errs = append(errs, validateEnvSource(v, volumes, at.Child("valueFrom"))...)
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
		errs = append(errs, field.Invalid(path, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case v.Value != "":
		errs = append(errs, field.Invalid(path, "", "may not be specified when `value` is not empty"))
	case sources > 1:
		errs = append(errs, field.Invalid(path, "", "may not have more than one field specified at a time"))
	}
	return errs
}

func validateKeyRef(name, key string, path *field.Path) field.ErrorList {
	errs := required(path.Child("name"), name)
	if key == "" {
		return append(errs, field.Required(path.Child("key"), ""))
	}
	return append(errs, invalid(path.Child("key"), key, utilvalidation.IsConfigMapKey(key))...)
}

func validateFileKeyRef(ref *corev1.FileKeySelector, volumes map[string]*corev1.VolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ref.VolumeName == "" {
		errs = append(errs, field.Required(path.Child("volumeName"), ""))
	} else if v := volumes[ref.VolumeName]; v == nil {
		errs = append(errs, field.NotFound(path.Child("volumeName"), ref.VolumeName))
	} else if v.EmptyDir == nil {
		errs = append(errs, field.Invalid(path.Child("volumeName"), ref.VolumeName, "referenced volume must be of type emptyDir"))
	}
	if ref.Key == "" {
		errs = append(errs, field.Required(path.Child("key"), ""))
	} else {
		errs = append(errs, invalid(path.Child("key"), ref.Key, utilvalidation.IsRelaxedEnvVarName(ref.Key))...)
	}
	if ref.Path == "" {
		return append(errs, field.Required(path.Child("path"), ""))
	}
	return append(errs, relativePath(path.Child("path"), ref.Path)...)
}

func validateFieldRef(ref *corev1.ObjectFieldSelector, allowed []string, path *field.Path) field.ErrorList {
	if ref.APIVersion == "" {
		return field.ErrorList{field.Required(path.Child("apiVersion"), "")}
	}
	at := path.Child("fieldPath")
	if ref.FieldPath == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	if base, key, ok := subscript(ref.FieldPath); ok {
		switch base {
		case "metadata.annotations":
			return invalid(at, ref.FieldPath, utilvalidation.IsQualifiedName(strings.ToLower(key)))
		case "metadata.labels":
			return invalid(at, ref.FieldPath, utilvalidation.IsQualifiedName(key))
		default:
			return field.ErrorList{field.Invalid(at, ref.FieldPath, "does not support subscript")}
		}
	}
	return oneOf(at, ref.FieldPath, allowed...)
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
	if inVolume && ref.ContainerName == "" {
		return field.ErrorList{field.Required(path.Child("containerName"), "")}
	}
	at := path.Child("resource")
	if ref.Resource == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	kind := strings.TrimPrefix(strings.TrimPrefix(ref.Resource, "limits."), "requests.")
	if !slices.Contains(shownResources, ref.Resource) && !strings.HasPrefix(kind, corev1.ResourceHugePagesPrefix) {
		return field.ErrorList{field.NotSupported(at, ref.Resource, shownResources)}
	}
	divisor := ref.Divisor.String()
	allowed := []string{"0", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
	if kind == string(corev1.ResourceCPU) {
		allowed = []string{"0", "1m", "1"}
	}
	if !slices.Contains(allowed, divisor) {
		return field.ErrorList{field.Invalid(path.Child("divisor"), divisor, "only divisor's values "+strings.Join(allowed[1:], ", ")+" are supported with the "+kind+" resource")}
	}
	return nil
}

func validateEnvFrom(sources []corev1.EnvFromSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, s := range sources {
		at, count := path.Index(i), 0
		if s.Prefix != "" {
			errs = append(errs, invalid(at.Child("prefix"), s.Prefix, utilvalidation.IsRelaxedEnvVarName(s.Prefix))...)
		}
		if s.ConfigMapRef != nil {
			count++
			errs = append(errs, required(at.Child("configMapRef", "name"), s.ConfigMapRef.Name)...)
		}
		if s.SecretRef != nil {
			count++
			errs = append(errs, required(at.Child("secretRef", "name"), s.SecretRef.Name)...)
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
