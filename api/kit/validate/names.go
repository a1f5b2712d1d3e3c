package validate

import (
	"strings"

	"fmt"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/naming"
	"k8s.io/apimachinery/pkg/api/validation/path"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

// CSIDriverName checks the name of a CSI driver, which may contain capitals.
func CSIDriverName(name string, path *field.Path) field.ErrorList {
	const maxName = 63
	errs := Required(path, name)
	if len(name) > maxName {
		errs = append(errs, field.TooLong(path, "" /*unused*/, maxName))
	}
	return append(errs, Complaints(path, name, naming.NameIsDNSSubdomain(strings.ToLower(name), false))...)
}

func RequiredQualifiedName(value string, path *field.Path) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return QualifiedName(path, value)
}

// SignerName requires the form example.com/name: a domain of two labels or more, and a path of one segment.
func SignerName(name string, path *field.Path) field.ErrorList {
	const longestDomain = utilvalidation.DNS1123SubdomainMaxLength
	const longest = longestDomain + 1 + utilvalidation.DNS1123LabelMaxLength + 1 +
		utilvalidation.DNS1123SubdomainMaxLength
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	segments := strings.Split(name, "/")
	if len(segments) != 2 {
		return field.ErrorList{field.Invalid(path, name,
			"must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	var errs field.ErrorList
	domain, rest := segments[0], segments[1]
	if len(domain) > longestDomain {
		errs = append(errs, field.TooLong(path, domain, longestDomain))
	}
	labels := strings.Split(domain, ".")
	for _, label := range labels {
		if field.Enough(errs) {
			break
		}
		for _, complaint := range naming.IsDNS1123Label(label) {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, field.Invalid(path, domain, fmt.Sprintf("validating label %q: %s", label, complaint)))
		}
	}
	if len(labels) < 2 {
		errs = append(errs,
			field.Invalid(path, domain, "should be a domain with at least two segments separated by dots"))
	}
	for label := range strings.SplitSeq(rest, ".") {
		if field.Enough(errs) {
			break
		}
		for _, complaint := range naming.IsDNS1123Subdomain(label) {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, field.Invalid(path, rest, fmt.Sprintf("validating label %q: %s", label, complaint)))
		}
	}
	if len(name) > longest {
		errs = append(errs, field.TooLong(path, name, longest))
	}
	return errs
}

// Omitted replaces values that are too long for a message.
const Omitted = "<value omitted>"

// SegmentName accepts any segment of a URL's path, such as the role name "system:admin".
func SegmentName(name string, _ bool) []string { return path.IsValidPathSegmentName(name) }
