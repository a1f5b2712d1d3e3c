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
	// maxTimeout limits a webhook's timeout, and maxConditions the number of its conditions.
	maxTimeout    = 30 * time.Second
	maxConditions = 64
)

// validate returns the errors in a file, with kube-apiserver's texts.
func (c *Configuration) validate() (errs field.ErrorList) {
	root := field.NewPath("authorizers")
	if len(c.Authorizers) == 0 {
		return field.ErrorList{field.Required(root, "at least one authorization mode must be defined")}
	}
	seen, names := sets.New[string](), sets.New[string]()
	for i := range c.Authorizers {
		a, path := &c.Authorizers[i], root.Index(i)
		switch {
		case a.Type == "":
			errs = append(errs, field.Required(path.Child("type"), ""))
			continue
		case !slices.Contains(types, a.Type):
			errs = append(errs, field.NotSupported(path.Child("type"), a.Type, types))
			continue
		case seen.Has(a.Type) && a.Type != TypeWebhook:
			errs = append(errs, field.Duplicate(path.Child("type"), a.Type))
			continue
		}
		seen.Insert(a.Type)
		errs = append(errs, a.validateName(names, path.Child("name"))...)
		names.Insert(a.Name)
		switch {
		case a.Type == TypeWebhook && a.Webhook == nil:
			errs = append(errs, field.Required(path.Child("webhook"), "required when type=Webhook"))
		case a.Type == TypeWebhook:
			errs = append(errs, a.Webhook.validate(path.Child("webhook"))...)
		case a.Webhook != nil:
			errs = append(errs, field.Invalid(path.Child("webhook"), "non-null",
				"may only be specified when type=Webhook"))
		}
	}
	return errs
}

func (a *AuthorizerConfiguration) validateName(names sets.Set[string], path *field.Path) (errs field.ErrorList) {
	if a.Name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	if names.Has(a.Name) {
		errs = append(errs, field.Duplicate(path, a.Name))
	} else if faults := validation.IsDNS1123Subdomain(a.Name); len(faults) > 0 {
		errs = append(errs, field.Invalid(path, a.Name, "authorizer name is invalid: "+strings.Join(faults, ", ")))
	}
	if name := strings.ToLower(a.Type); a.Type != TypeWebhook && a.Name != name {
		errs = append(errs, field.Invalid(path, a.Name,
			fmt.Sprintf("expected name %s for authorizer %s instead of %s", name, a.Type, a.Name)))
	}
	return errs
}

func (w *WebhookConfiguration) validate(path *field.Path) (errs field.ErrorList) {
	if t := w.Timeout.Duration; t == 0 {
		errs = append(errs, field.Required(path.Child("timeout"), ""))
	} else if t < 0 || t > maxTimeout {
		errs = append(errs, field.Invalid(path.Child("timeout"), t.String(), "must be > 0s and <= 30s"))
	}
	if t := w.AuthorizedTTL.Duration; t < 0 {
		errs = append(errs, field.Invalid(path.Child("authorizedTTL"), t.String(), "must be > 0s"))
	}
	if t := w.UnauthorizedTTL.Duration; t < 0 {
		errs = append(errs, field.Invalid(path.Child("unauthorizedTTL"), t.String(), "must be > 0s"))
	}
	review := path.Child("subjectAccessReviewVersion")
	errs = append(errs, oneOf(w.SubjectAccessReviewVersion, review, "v1", "v1beta1")...)
	version := path.Child("matchConditionSubjectAccessReviewVersion")
	if w.MatchConditionSubjectAccessReviewVersion != "" {
		errs = append(errs, oneOf(w.MatchConditionSubjectAccessReviewVersion, version, "v1")...)
	} else if len(w.MatchConditions) > 0 {
		errs = append(errs, field.Required(version, "required if match conditions are specified"))
	}
	errs = append(errs, oneOf(w.FailurePolicy, path.Child("failurePolicy"), FailureNoOpinion, FailureDeny)...)
	errs = append(errs, w.ConnectionInfo.validate(path.Child("connectionInfo"))...)
	_, faults := compileConditions(w.MatchConditions, path.Child("matchConditions"))
	return append(errs, faults...)
}

func oneOf(value string, path *field.Path, values ...string) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(path, "")}
	case !slices.Contains(values, value):
		return field.ErrorList{field.NotSupported(path, value, values)}
	}
	return nil
}

func (i *WebhookConnectionInfo) validate(root *field.Path) field.ErrorList {
	file := root.Child("kubeConfigFile")
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
		fault = field.Required(root.Child("type"), "")
	case "InClusterConfig": // for servers other than kube-apiserver
		fault = field.Invalid(root.Child("type"), i.Type, "is not allowed: the server would ask itself")
	default:
		fault = field.NotSupported(root.Child("type"), i.Type, []string{kubeConfigFile})
	}
	if fault == nil {
		return nil
	}
	return field.ErrorList{fault}
}
