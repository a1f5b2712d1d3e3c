package validate

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/naming"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func SoundLabels(labels map[string]string) bool {
	for key, value := range labels {
		if len(naming.IsQualifiedName(key)) > 0 || len(naming.IsValidLabelValue(value)) > 0 {
			return false
		}
	}
	return true
}

func SoundAnnotations(annotations map[string]string) bool {
	size := 0
	for key, value := range annotations {
		if size += len(key) + len(value); len(naming.IsQualifiedName(strings.ToLower(key))) > 0 {
			return false
		}
	}
	return size <= validation.TotalAnnotationSizeLimitB
}

// Labels and Annotations check the metadata of a template, and label maps elsewhere. api.ValidateObjectMeta checks the
// metadata of objects.
func Labels(labels map[string]string, path *field.Path) field.ErrorList {
	if SoundLabels(labels) {
		return nil
	}
	return metav1validation.ValidateLabels(labels, path.Plain())
}

func Annotations(annotations map[string]string, path *field.Path) field.ErrorList {
	if SoundAnnotations(annotations) {
		return nil
	}
	return validation.ValidateAnnotations(annotations, path.Plain())
}

func Selector(s *metav1.LabelSelector, path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := Labels(s.MatchLabels, path.Child("matchLabels"))
	for i, r := range s.MatchExpressions {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("matchExpressions").Index(i).Plain()
		errs = append(errs, metav1validation.ValidateLabelSelectorRequirement(r,
			metav1validation.LabelSelectorValidationOptions{}, idxPath)...)
	}
	return errs
}
