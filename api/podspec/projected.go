package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func validateMode(mode *int32, path *field.Path) field.ErrorList {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		return field.ErrorList{field.Invalid(path, *mode,
			"must be a number between 0 and 0777 (octal), both inclusive")}
	}
	return nil
}

func validateItems(items []corev1.KeyToPath, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, item := range items {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("items").Index(i)
		errs = append(errs, validate.Required(idxPath.Child("key"), item.Key)...)
		errs = append(errs, filePath(idxPath.Child("path"), item.Path)...)
		errs = append(errs, validateMode(item.Mode, idxPath.Child("mode"))...)
	}
	return errs
}

// filePath checks the path of a file in a volume.
func filePath(path *field.Path, p string) field.ErrorList {
	if p == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := validate.RelativePath(path, p)
	if strings.HasPrefix(p, "..") && !strings.HasPrefix(p, "../") {
		errs = append(errs, field.Invalid(path, p, "must not start with '..'"))
	}
	return errs
}

// validateDownwardItems reports errors at the path of the list instead of the item, as Kubernetes does.
func validateDownwardItems(items []corev1.DownwardAPIVolumeFile, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range items {
		if field.Enough(errs) {
			break
		}
		item := &items[i]
		errs = append(errs, filePath(path.Child("path"), item.Path)...)
		switch {
		case item.FieldRef != nil:
			errs = append(errs, validateFieldRef(item.FieldRef, fileFields, path.Child("fieldRef"))...)
			if item.ResourceFieldRef != nil {
				errs = append(errs, field.Invalid(path, "resource", "fieldRef and resourceFieldRef can not be "+
					"specified simultaneously"))
			}
		case item.ResourceFieldRef != nil:
			errs = append(errs, validateResourceRef(item.ResourceFieldRef, true, path.Child("resourceFieldRef"))...)
		default:
			errs = append(errs, field.Required(path, "one of fieldRef and resourceFieldRef is required"))
		}
		errs = append(errs, validateMode(item.Mode, path.Child("mode"))...)
	}
	return errs
}

// projection checks the sources of one projected volume. Their files must not conflict.
type projection struct {
	path   *field.Path
	paths  []string
	before validate.Seen // of paths
	errs   field.ErrorList
}

func validateProjected(p *corev1.ProjectedVolumeSource, path *field.Path) field.ErrorList {
	v := projection{path: path, errs: validateMode(p.DefaultMode, path.Child("defaultMode"))}
	for i := range p.Sources {
		v.source(&p.Sources[i], path.Child("sources").Index(i))
	}
	return v.errs
}

func (v *projection) add(errs field.ErrorList) { v.errs = append(v.errs, errs...) }

// file records a file's path. source is the value in the error about a conflict.
func (v *projection) file(path, source string) {
	if path == "" {
		return
	}
	if validate.Repeated(&v.before, v.paths, path) {
		v.errs = append(v.errs, field.Invalid(v.path, source, "conflicting duplicate paths"))
	}
	v.paths = append(v.paths, path)
}

func (v *projection) items(name string, items []corev1.KeyToPath, path *field.Path) {
	v.add(validate.Required(path.Child("name"), name))
	v.add(validateItems(items, path))
	for _, item := range items {
		v.file(item.Path, name)
	}
}

func (v *projection) source(s *corev1.VolumeProjection, path *field.Path) {
	sources := 0
	if s.Secret != nil {
		sources++
		v.items(s.Secret.Name, s.Secret.Items, path.Child("secret"))
	}
	if s.ConfigMap != nil {
		sources++
		v.items(s.ConfigMap.Name, s.ConfigMap.Items, path.Child("configMap"))
	}
	if s.DownwardAPI != nil {
		sources++
		v.add(validateDownwardItems(s.DownwardAPI.Items, path.Child("downwardAPI")))
		for _, item := range s.DownwardAPI.Items {
			v.file(item.Path, item.Path)
		}
	}
	if s.ServiceAccountToken != nil {
		sources++
		v.add(validateTokenLifetime(s.ServiceAccountToken, path.Child("serviceAccountToken", "expirationSeconds")))
		v.add(filePath(v.path.Child("path"), s.ServiceAccountToken.Path))
	}
	if s.ClusterTrustBundle != nil {
		sources++
		v.trustBundle(s.ClusterTrustBundle, path.Child("clusterTrustBundle"))
	}
	if s.PodCertificate != nil {
		sources++
		v.podCertificate(s.PodCertificate, path.Child("podCertificate"))
	}
	if sources > 1 {
		v.errs = append(v.errs, field.Forbidden(path, "may not specify more than 1 volume type per source"))
	}
}

func validateTokenLifetime(t *corev1.ServiceAccountTokenProjection, path *field.Path) field.ErrorList {
	seconds := t.ExpirationSeconds
	switch {
	case seconds != nil && *seconds < 10*60:
		return field.ErrorList{field.Invalid(path, *seconds, "may not specify a duration less than 10 minutes")}
	case seconds != nil && *seconds > 1<<32:
		return field.ErrorList{field.Invalid(path, *seconds, "may not specify a duration larger than 2^32 seconds")}
	}
	return nil
}

func (v *projection) trustBundle(b *corev1.ClusterTrustBundleProjection, path *field.Path) {
	switch {
	case b.Name != nil && b.SignerName != nil:
		v.errs = append(v.errs, field.Invalid(path, b, "only one of name and signerName may be used"))
	case b.Name != nil:
		v.add(trustBundleName(*b.Name, path.Child("name")))
		if b.LabelSelector != nil {
			v.errs = append(v.errs, field.Invalid(path.Child("labelSelector"), b.LabelSelector,
				"labelSelector must be unset if name is specified"))
		}
	case b.SignerName != nil:
		if *b.SignerName == "" {
			v.errs = append(v.errs, field.Required(path.Child("signerName"), "must be a valid signer name"))
		}
		v.add(validate.Selector(b.LabelSelector, path.Child("labelSelector")))
	default:
		v.errs = append(v.errs, field.Required(path, "either name or signerName must be specified"))
	}
	v.add(filePath(path.Child("path"), b.Path))
	v.file(b.Path, b.Path)
}

// podKeyTypes are the types of keys that a kubelet generates for a certificate.
var podKeyTypes = []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"}

func (v *projection) podCertificate(p *corev1.PodCertificateProjection, path *field.Path) {
	v.add(validate.SignerName(p.SignerName, path.Child("signerName")))
	v.add(validate.OneOf(path.Child("keyType"), p.KeyType, podKeyTypes...))
	v.add(ValidatePodCertificateLife(p.MaxExpirationSeconds, p.SignerName, path.Child("maxExpirationSeconds")))
	v.add(ValidateUserNotes(p.UserAnnotations, path.Child("userAnnotations")))
	files := 0
	for _, f := range []struct{ name, path string }{
		{"credentialBundlePath", p.CredentialBundlePath}, {"keyPath", p.KeyPath},
		{"certificateChainPath", p.CertificateChainPath},
	} {
		if f.path != "" {
			files++
			v.add(filePath(path.Child(f.name), f.path))
			v.file(f.path, f.path)
		}
	}
	if files == 0 {
		v.errs = append(v.errs,
			field.Required(path, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath"))
	}
}

// trustBundleName checks a name. If the bundle has a signer, the name begins with the signer's name.
func trustBundleName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "must be a valid object name")}
	}
	var errs field.ErrorList
	rest := name[strings.LastIndexByte(name, ':')+1:]
	for _, complaint := range naming.NameIsDNSSubdomain(rest, false) {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, field.Invalid(path, name, "not a valid clustertrustbundlename: "+complaint))
	}
	return errs
}
