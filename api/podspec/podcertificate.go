package podspec

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/field"
)

// The limits of the requested lifetime of a pod's certificate, in seconds. Kubernetes' own signers issue for at most a
// day.
const (
	hourOfSeconds   = 60 * 60
	dayOfSeconds    = 24 * hourOfSeconds
	maxPodCertLife  = 91 * dayOfSeconds
	maxUserNotes    = validation.TotalAnnotationSizeLimitB
	ownSignerDomain = "kubernetes.io/"
)

// ValidatePodCertificateLife checks the requested lifetime of a certificate, in seconds. It must be set, since it has
// a default.
func ValidatePodCertificateLife(seconds *int32, signer string, path *field.Path) field.ErrorList {
	longest := int32(maxPodCertLife)
	if strings.HasPrefix(signer, ownSignerDomain) {
		longest = dayOfSeconds
	}
	switch {
	case seconds == nil:
		return field.ErrorList{field.Required(path, "must be set")}
	case *seconds < hourOfSeconds || *seconds > longest:
		return field.ErrorList{field.Invalid(path, *seconds,
			fmt.Sprintf("must be in the range [%d, %d]", hourOfSeconds, longest))}
	}
	return nil
}

// ValidateUserNotes requires keys with a domain prefix.
func ValidateUserNotes(notes map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	total := 0
	for key, value := range notes {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, utilvalidation.IsDomainPrefixedKey(path.Plain(), strings.ToLower(key))...)
		total += len(key) + len(value)
	}
	if total > maxUserNotes {
		errs = append(errs, field.TooLong(path, "" /*unused*/, maxUserNotes))
	}
	return errs
}
