package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

const (
	apiVersion = "audit.k8s.io/v1"
	policyKind = "Policy"
)

// policyFile is audit.k8s.io/v1 Policy.
// https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/#audit-k8s-io-v1-Policy
// https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/#audit-k8s-io-v1-Policy
type policyFile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Rules             []policyRule `json:"rules"`
	OmitStages        []string     `json:"omitStages,omitempty"`
	OmitManagedFields bool         `json:"omitManagedFields,omitempty"`
}

type policyRule struct {
	Level             string           `json:"level"`
	Users             []string         `json:"users,omitempty"`
	UserGroups        []string         `json:"userGroups,omitempty"`
	Verbs             []string         `json:"verbs,omitempty"`
	Resources         []groupResources `json:"resources,omitempty"`
	Namespaces        []string         `json:"namespaces,omitempty"`
	NonResourceURLs   []string         `json:"nonResourceURLs,omitempty"`
	OmitStages        []string         `json:"omitStages,omitempty"`
	OmitManagedFields *bool            `json:"omitManagedFields,omitempty"`
}

type groupResources struct {
	Group         string   `json:"group,omitempty"`
	Resources     []string `json:"resources,omitempty"`
	ResourceNames []string `json:"resourceNames,omitempty"`
}

// ParsePolicy parses a policy in YAML or JSON. Unknown and duplicate fields are errors, because a rule that differs
// from the author's intent may record confidential data or lose required records.
func ParsePolicy(text []byte) (*Policy, error) {
	var file policyFile
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, fmt.Errorf("decoding an audit policy: %w", err)
	}
	if file.APIVersion != apiVersion || file.Kind != policyKind {
		return nil, fmt.Errorf("an audit policy has apiVersion %s and kind %s, not %q and %q", apiVersion, policyKind,
			file.APIVersion, file.Kind)
	}
	if errs := file.validate(); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	if len(file.Rules) == 0 {
		return nil, errors.New("an audit policy must have rules: without any it records nothing")
	}
	return file.compile()
}

// validate makes the checks of k8s.io/apiserver/pkg/apis/audit/validation.
func (p *policyFile) validate() (errs field.ErrorList) {
	errs = append(errs, validateStages(p.OmitStages, field.NewPath("omitStages"))...)
	for i := range p.Rules {
		errs = append(errs, p.Rules[i].validate(field.NewPath("rules").Index(i))...)
	}
	return errs
}

func (r *policyRule) validate(path *field.Path) (errs field.ErrorList) {
	switch level := path.Child("level"); {
	case r.Level == "":
		errs = append(errs, field.Required(level, ""))
	case !slices.Contains(levelNames, r.Level):
		errs = append(errs, field.NotSupported(level, r.Level, levelNames))
	}
	urls := path.Child("nonResourceURLs")
	for i, url := range r.NonResourceURLs {
		if url == "*" {
			continue
		}
		if !strings.HasPrefix(url, "/") {
			errs = append(errs, field.Invalid(urls.Index(i), url,
				"non-resource URL rules must begin with a '/' character"))
		}
		if star := strings.IndexByte(url, '*'); star >= 0 && star < len(url)-1 {
			errs = append(errs, field.Invalid(urls.Index(i), url,
				"non-resource URL wildcards '*' must be the final character of the rule"))
		}
	}
	errs = append(errs, validateResources(r.Resources, path.Child("resources"))...)
	errs = append(errs, validateStages(r.OmitStages, path.Child("omitStages"))...)
	if len(r.NonResourceURLs) > 0 && len(r.Resources)+len(r.Namespaces) > 0 {
		errs = append(errs, field.Invalid(urls, r.NonResourceURLs,
			"rules cannot apply to both regular resources and non-resource URLs"))
	}
	return errs
}

func validateResources(list []groupResources, path *field.Path) (errs field.ErrorList) {
	for _, g := range list {
		if g.Group != "" {
			if wrong := validation.NameIsDNSSubdomain(g.Group, false); len(wrong) > 0 {
				errs = append(errs, field.Invalid(path.Child("group"), g.Group, strings.Join(wrong, ",")))
			}
		}
		if len(g.ResourceNames) > 0 && len(g.Resources) == 0 {
			errs = append(errs, field.Invalid(path.Child("resourceNames"), g.ResourceNames,
				"using resourceNames requires at least one resource"))
		}
	}
	return errs
}

func validateStages(names []string, path *field.Path) (errs field.ErrorList) {
	for i, name := range names {
		if !slices.Contains(stageNames, name) {
			errs = append(errs, field.Invalid(path.Index(i), name,
				"allowed stages are "+strings.Join(stageNames, ",")))
		}
	}
	return errs
}
