package authz

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// maxTimeout bounds a webhook's timeout, and maxConditions how many conditions it may have.
	maxTimeout    = 30 * time.Second
	maxConditions = 64
)

// validate returns what is wrong with the content of a file, in kube-apiserver's words.
func (c *Configuration) validate() (errs field.ErrorList) {
	root := field.NewPath("authorizers")
	if len(c.Authorizers) == 0 {
		return field.ErrorList{field.Required(root, "at least one authorization mode must be defined")}
	}
	seen, names := sets.New[string](), sets.New[string]()
	for i := range c.Authorizers {
		a, at := &c.Authorizers[i], root.Index(i)
		switch {
		case a.Type == "":
			errs = append(errs, field.Required(at.Child("type"), ""))
			continue
		case !slices.Contains(types, a.Type):
			errs = append(errs, field.NotSupported(at.Child("type"), a.Type, types))
			continue
		case seen.Has(a.Type) && a.Type != TypeWebhook:
			errs = append(errs, field.Duplicate(at.Child("type"), a.Type))
			continue
		}
		seen.Insert(a.Type)
		errs = append(errs, a.validateName(names, at.Child("name"))...)
		names.Insert(a.Name)
		switch {
		case a.Type == TypeWebhook && a.Webhook == nil:
			errs = append(errs, field.Required(at.Child("webhook"), "required when type=Webhook"))
		case a.Type == TypeWebhook:
			errs = append(errs, a.Webhook.validate(at.Child("webhook"))...)
		case a.Webhook != nil:
			errs = append(errs, field.Invalid(at.Child("webhook"), "non-null",
				"may only be specified when type=Webhook"))
		}
	}
	return errs
}

func (a *AuthorizerConfiguration) validateName(names sets.Set[string], at *field.Path) (errs field.ErrorList) {
	if a.Name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	if names.Has(a.Name) {
		errs = append(errs, field.Duplicate(at, a.Name))
	} else if faults := validation.IsDNS1123Subdomain(a.Name); len(faults) > 0 {
		errs = append(errs, field.Invalid(at, a.Name, "authorizer name is invalid: "+strings.Join(faults, ", ")))
	}
	if name := strings.ToLower(a.Type); a.Type != TypeWebhook && a.Name != name {
		errs = append(errs, field.Invalid(at, a.Name,
			fmt.Sprintf("expected name %s for authorizer %s instead of %s", name, a.Type, a.Name)))
	}
	return errs
}

func (w *WebhookConfiguration) validate(at *field.Path) (errs field.ErrorList) {
	if t := w.Timeout.Duration; t == 0 {
		errs = append(errs, field.Required(at.Child("timeout"), ""))
	} else if t < 0 || t > maxTimeout {
		errs = append(errs, field.Invalid(at.Child("timeout"), t.String(), "must be > 0s and <= 30s"))
	}
	if t := w.AuthorizedTTL.Duration; t < 0 {
		errs = append(errs, field.Invalid(at.Child("authorizedTTL"), t.String(), "must be > 0s"))
	}
	if t := w.UnauthorizedTTL.Duration; t < 0 {
		errs = append(errs, field.Invalid(at.Child("unauthorizedTTL"), t.String(), "must be > 0s"))
	}
	errs = append(errs, oneOf(w.SubjectAccessReviewVersion, at.Child("subjectAccessReviewVersion"), "v1", "v1beta1")...)
	version := at.Child("matchConditionSubjectAccessReviewVersion")
	if w.MatchConditionSubjectAccessReviewVersion != "" {
		errs = append(errs, oneOf(w.MatchConditionSubjectAccessReviewVersion, version, "v1")...)
	} else if len(w.MatchConditions) > 0 {
		errs = append(errs, field.Required(version, "required if match conditions are specified"))
	}
	errs = append(errs, oneOf(w.FailurePolicy, at.Child("failurePolicy"), FailureNoOpinion, FailureDeny)...)
	errs = append(errs, w.ConnectionInfo.validate(at.Child("connectionInfo"))...)
	_, faults := compileConditions(w.MatchConditions, at.Child("matchConditions"))
	return append(errs, faults...)
}

func oneOf(value string, at *field.Path, values ...string) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(at, "")}
	case !slices.Contains(values, value):
		return field.ErrorList{field.NotSupported(at, value, values)}
	}
	return nil
}

func (i *WebhookConnectionInfo) validate(at *field.Path) field.ErrorList {
	file := at.Child("kubeConfigFile")
	var fault *field.Error
	switch i.Type {
	case kubeConfigFile:
		if i.KubeConfigFile == nil || *i.KubeConfigFile == "" {
			fault = field.Required(file, "")
			break
		}
		path := *i.KubeConfigFile
		if !filepath.IsAbs(path) {
			fault = field.Invalid(file, path, "must be an absolute path")
		} else if info, err := os.Stat(path); err != nil {
			fault = field.Invalid(file, path, fmt.Sprintf("error loading file: %v", err))
		} else if !info.Mode().IsRegular() {
			fault = field.Invalid(file, path, "must be a regular file")
		}
	case "":
		fault = field.Required(at.Child("type"), "")
	case "InClusterConfig": // for servers other than kube-apiserver
		fault = field.Invalid(at.Child("type"), i.Type, "is not allowed: the server would ask itself")
	default:
		fault = field.NotSupported(at.Child("type"), i.Type, []string{kubeConfigFile})
	}
	if fault == nil {
		return nil
	}
	return field.ErrorList{fault}
}
