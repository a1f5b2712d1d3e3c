package api

import (
	"path"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateVolumes also returns the volumes by name, for the mounts to be checked against.
func validateVolumes(volumes []corev1.Volume, podName string, path *field.Path) (map[string]*corev1.VolumeSource, field.ErrorList) {
	var errs field.ErrorList
	byName := make(map[string]*corev1.VolumeSource, len(volumes))
	for i := range volumes {
		v, at := &volumes[i], path.Index(i)
		errs = append(errs, validateVolumeSource(&v.VolumeSource, v.Name, podName, at)...)
		switch {
		case v.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case byName[v.Name] != nil:
			errs = append(errs, field.Duplicate(at.Child("name"), v.Name))
		default:
			errs = append(errs, dnsLabel(at.Child("name"), v.Name)...)
			byName[v.Name] = &v.VolumeSource
		}
	}
	return byName, errs
}

// volumeTypes counts the sources that are set. All fields of a VolumeSource are pointers.
func volumeTypes(v *corev1.VolumeSource) int {
	n, fields := 0, reflect.ValueOf(v).Elem()
	for i := range fields.NumField() {
		if !fields.Field(i).IsNil() {
			n++
		}
	}
	return n
}

func validateVolumeSource(v *corev1.VolumeSource, name, podName string, path *field.Path) field.ErrorList {
	switch volumeTypes(v) {
	case 0:
		return field.ErrorList{field.Required(path, "must specify a volume type")}
	case 1:
	default:
		return field.ErrorList{field.Forbidden(path, "may not specify more than 1 volume type")}
	}
	switch {
	case v.EmptyDir != nil:
		if limit := v.EmptyDir.SizeLimit; limit != nil && limit.Sign() < 0 {
			return field.ErrorList{field.Forbidden(path.Child("emptyDir", "sizeLimit"), "SizeLimit field must be a valid resource quantity")}
		}
	case v.HostPath != nil:
		return validateHostPath(v.HostPath, path.Child("hostPath"))
	case v.Secret != nil:
		at := path.Child("secret")
		errs := required(at.Child("secretName"), v.Secret.SecretName)
		errs = append(errs, validateMode(v.Secret.DefaultMode, at.Child("defaultMode"))...)
		return append(errs, validateItems(v.Secret.Items, at)...)
	case v.ConfigMap != nil:
		at := path.Child("configMap")
		errs := required(at.Child("name"), v.ConfigMap.Name)
		errs = append(errs, validateMode(v.ConfigMap.DefaultMode, at.Child("defaultMode"))...)
		return append(errs, validateItems(v.ConfigMap.Items, at)...)
	case v.DownwardAPI != nil:
		at := path.Child("downwardAPI")
		errs := validateMode(v.DownwardAPI.DefaultMode, at.Child("defaultMode"))
		return append(errs, validateDownwardItems(v.DownwardAPI.Items, at)...)
	case v.Projected != nil:
		return validateProjected(v.Projected, path.Child("projected"))
	case v.PersistentVolumeClaim != nil:
		return required(path.Child("persistentVolumeClaim", "claimName"), v.PersistentVolumeClaim.ClaimName)
	case v.CSI != nil:
		return required(path.Child("csi", "driver"), v.CSI.Driver)
	case v.NFS != nil:
		return validateNFS(v.NFS, path.Child("nfs"))
	case v.Image != nil:
		at := path.Child("image")
		errs := required(at.Child("reference"), v.Image.Reference)
		return append(errs, requiredOneOf(at.Child("pullPolicy"), v.Image.PullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)...)
	case v.Ephemeral != nil:
		return validateEphemeralVolume(v.Ephemeral, name, podName, path.Child("ephemeral"))
	}
	return nil
}

func validateHostPath(h *corev1.HostPathVolumeSource, path *field.Path) field.ErrorList {
	if h.Path == "" {
		return field.ErrorList{field.Required(path.Child("path"), "")}
	}
	errs := noBacksteps(path.Child("path"), h.Path)
	if h.Type != nil {
		errs = append(errs, oneOf(path.Child("type"), *h.Type,
			corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate,
			corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev)...)
	}
	return errs
}

func validateNFS(n *corev1.NFSVolumeSource, at *field.Path) field.ErrorList {
	errs := required(at.Child("server"), n.Server)
	errs = append(errs, required(at.Child("path"), n.Path)...)
	if n.Path != "" && !path.IsAbs(n.Path) {
		errs = append(errs, field.Invalid(at.Child("path"), n.Path, "must be an absolute path"))
	}
	return errs
}

func validateEphemeralVolume(e *corev1.EphemeralVolumeSource, name, podName string, path *field.Path) field.ErrorList {
	if e.VolumeClaimTemplate == nil {
		return field.ErrorList{field.Required(path.Child("volumeClaimTemplate"), "")}
	}
	errs := validateClaimSpec(&e.VolumeClaimTemplate.Spec, path.Child("volumeClaimTemplate", "spec"))
	if podName != "" {
		claim := podName + "-" + name
		for _, complaint := range validation.NameIsDNSSubdomain(claim, false) {
			errs = append(errs, field.Invalid(path.Root(), claim, "PVC name \""+claim+"\": "+complaint))
		}
	}
	return errs
}

func validateMode(mode *int32, path *field.Path) field.ErrorList {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		return field.ErrorList{field.Invalid(path, *mode, "must be a number between 0 and 0777 (octal), both inclusive")}
	}
	return nil
}

func validateItems(items []corev1.KeyToPath, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, item := range items {
		at := path.Child("items").Index(i)
		errs = append(errs, required(at.Child("key"), item.Key)...)
		errs = append(errs, filePath(at.Child("path"), item.Path)...)
		errs = append(errs, validateMode(item.Mode, at.Child("mode"))...)
	}
	return errs
}

// filePath checks where a key of a volume becomes a file.
func filePath(at *field.Path, p string) field.ErrorList {
	if p == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	errs := relativePath(at, p)
	if strings.HasPrefix(p, "..") && !strings.HasPrefix(p, "../") && p != ".." {
		errs = append(errs, field.Invalid(at, p, "must not start with '..'"))
	}
	return errs
}

func validateDownwardItems(items []corev1.DownwardAPIVolumeFile, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range items {
		item, at := &items[i], path
		errs = append(errs, filePath(at.Child("path"), item.Path)...)
		switch {
		case item.FieldRef != nil && item.ResourceFieldRef != nil:
			errs = append(errs, field.Invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
		case item.FieldRef != nil:
			errs = append(errs, validateFieldRef(item.FieldRef, fileFields, at.Child("fieldRef"))...)
		case item.ResourceFieldRef != nil:
			errs = append(errs, validateResourceRef(item.ResourceFieldRef, true, at.Child("resourceFieldRef"))...)
		default:
			errs = append(errs, field.Required(at, "one of fieldRef and resourceFieldRef is required"))
		}
		errs = append(errs, validateMode(item.Mode, at.Child("mode"))...)
	}
	return errs
}

func validateProjected(p *corev1.ProjectedVolumeSource, path *field.Path) field.ErrorList {
	errs := validateMode(p.DefaultMode, path.Child("defaultMode"))
	for i := range p.Sources {
		s, at, count := &p.Sources[i], path.Child("sources").Index(i), 0
		one := func(set bool, name string, check func(*field.Path) field.ErrorList) {
			if !set {
				return
			}
			if count++; count > 1 {
				errs = append(errs, field.Forbidden(at, "may not specify more than 1 volume type per source"))
				return
			}
			errs = append(errs, check(at.Child(name))...)
		}
		one(s.Secret != nil, "secret", func(at *field.Path) field.ErrorList {
			return append(required(at.Child("name"), s.Secret.Name), validateItems(s.Secret.Items, at)...)
		})
		one(s.ConfigMap != nil, "configMap", func(at *field.Path) field.ErrorList {
			return append(required(at.Child("name"), s.ConfigMap.Name), validateItems(s.ConfigMap.Items, at)...)
		})
		one(s.DownwardAPI != nil, "downwardAPI", func(at *field.Path) field.ErrorList {
			return validateDownwardItems(s.DownwardAPI.Items, at)
		})
		one(s.ServiceAccountToken != nil, "serviceAccountToken", func(at *field.Path) field.ErrorList {
			return validateTokenProjection(s.ServiceAccountToken, at)
		})
		one(s.ClusterTrustBundle != nil, "clusterTrustBundle", func(at *field.Path) field.ErrorList {
			return filePath(at.Child("path"), s.ClusterTrustBundle.Path)
		})
		one(s.PodCertificate != nil, "podCertificate", func(at *field.Path) field.ErrorList {
			return required(at.Child("signerName"), s.PodCertificate.SignerName)
		})
		if count == 0 {
			errs = append(errs, field.Required(at, "must specify a volume type"))
		}
	}
	return errs
}

func validateTokenProjection(t *corev1.ServiceAccountTokenProjection, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if seconds := t.ExpirationSeconds; seconds != nil {
		at := path.Child("expirationSeconds")
		switch {
		case *seconds < 10*60:
			errs = append(errs, field.Invalid(at, *seconds, "may not specify a duration less than 10 minutes"))
		case *seconds > 1<<32:
			errs = append(errs, field.Invalid(at, *seconds, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	return append(errs, filePath(path.Child("path"), t.Path)...)
}

// validateClaimSpec checks the spec of a persistent volume claim or of a template for one.
func validateClaimSpec(spec *corev1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.AccessModes) == 0 {
		errs = append(errs, field.Required(path.Child("accessModes"), "at least 1 access mode is required"))
	}
	once, others := false, false
	for _, mode := range spec.AccessModes {
		errs = append(errs, oneOf(path.Child("accessModes"), mode,
			corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)...)
		once = once || mode == corev1.ReadWriteOncePod
		others = others || mode != corev1.ReadWriteOncePod
	}
	if once && others {
		errs = append(errs, field.Forbidden(path.Child("accessModes"), "may not use ReadWriteOncePod with other access modes"))
	}
	errs = append(errs, selector(spec.Selector, path.Child("selector"))...)
	storage := path.Child("resources").Key(string(corev1.ResourceStorage))
	if q, ok := spec.Resources.Requests[corev1.ResourceStorage]; !ok {
		errs = append(errs, field.Required(storage, ""))
	} else if q.Sign() <= 0 {
		errs = append(errs, field.Invalid(storage, q.String(), "must be greater than zero"))
	}
	if class := spec.StorageClassName; class != nil && *class != "" {
		errs = append(errs, dnsSubdomain(path.Child("storageClassName"), *class)...)
	}
	if class := spec.VolumeAttributesClassName; class != nil && *class != "" {
		errs = append(errs, invalid(path.Child("volumeAttributesClassName"), *class, utilvalidation.IsDNS1123Subdomain(*class))...)
	}
	if mode := spec.VolumeMode; mode != nil {
		errs = append(errs, oneOf(path.Child("volumeMode"), *mode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)...)
	}
	return append(errs, validateClaimSource(spec, path)...)
}

func validateClaimSource(spec *corev1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s := spec.DataSource; s != nil {
		at := path.Child("dataSource")
		errs = append(errs, required(at.Child("name"), s.Name)...)
		errs = append(errs, required(at.Child("kind"), s.Kind)...)
		if (s.APIGroup == nil || *s.APIGroup == "") && s.Kind != "PersistentVolumeClaim" {
			errs = append(errs, field.Invalid(at, s.Kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
		}
	}
	if s := spec.DataSourceRef; s != nil {
		at := path.Child("dataSourceRef")
		errs = append(errs, required(at.Child("name"), s.Name)...)
		errs = append(errs, required(at.Child("kind"), s.Kind)...)
	}
	return errs
}
