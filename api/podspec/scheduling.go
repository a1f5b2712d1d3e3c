package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func validateAffinity(a *corev1.Affinity, path *field.Path) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	if n := a.NodeAffinity; n != nil {
		nodePath := path.Child("nodeAffinity")
		if required := n.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			errs = append(errs,
				ValidateNodeSelector(required, nodePath.Child("requiredDuringSchedulingIgnoredDuringExecution"))...)
		}
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			if field.Enough(errs) {
				break
			}
			term, nodePath := &n.PreferredDuringSchedulingIgnoredDuringExecution[i],
				nodePath.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
			errs = append(errs, weight(term.Weight, nodePath)...)
			errs = append(errs, validateNodeTerm(&term.Preference, false, nodePath.Child("preference"))...)
		}
	}
	if p := a.PodAffinity; p != nil {
		errs = append(errs, validatePodTerms(p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAffinity"))...)
	}
	if p := a.PodAntiAffinity; p != nil {
		errs = append(errs, validatePodTerms(p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAntiAffinity"))...)
	}
	return errs
}

func weight(w int32, path *field.Path) field.ErrorList {
	if w < 1 || w > 100 {
		return field.ErrorList{field.Invalid(path.Child("weight"), w, "must be in the range 1-100")}
	}
	return nil
}

func ValidateNodeSelector(s *corev1.NodeSelector, path *field.Path) field.ErrorList {
	fldPath := path.Child("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		return field.ErrorList{field.Required(fldPath, "must have at least one node selector term")}
	}
	var errs field.ErrorList
	for i := range s.NodeSelectorTerms {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateNodeTerm(&s.NodeSelectorTerms[i], true, fldPath.Index(i))...)
	}
	return errs
}

// validateNodeTerm checks a term. A preferred term may compare with values that no label can have.
func validateNodeTerm(t *corev1.NodeSelectorTerm, strict bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, r := range t.MatchExpressions {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("matchExpressions").Index(i)
		errs = append(errs, validateNodeOperator(r, idxPath)...)
		errs = append(errs, validate.QualifiedName(idxPath.Child("key"), r.Key)...)
		for j, v := range r.Values {
			if field.Enough(errs) {
				break
			}
			if strict {
				errs = append(errs,
					validate.Complaints(idxPath.Child("values").Index(j), v, naming.IsValidLabelValue(v))...)
			}
		}
	}
	for i, r := range t.MatchFields {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("matchFields").Index(i)
		if r.Operator != corev1.NodeSelectorOpIn && r.Operator != corev1.NodeSelectorOpNotIn {
			errs = append(errs, field.Invalid(idxPath.Child("operator"), r.Operator, "not a valid selector operator"))
		} else if len(r.Values) != 1 {
			errs = append(errs, field.Required(idxPath.Child("values"), "must be only one value when `operator` is "+
				"'In' or 'NotIn' for node field selector"))
		}
		if r.Key != metav1.ObjectNameField {
			errs = append(errs, field.Invalid(idxPath.Child("key"), r.Key, "not a valid field selector key"))
			continue
		}
		for j, v := range r.Values {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, validate.DnsSubdomain(idxPath.Child("values").Index(j), v)...)
		}
	}
	return errs
}

func validateNodeOperator(r corev1.NodeSelectorRequirement, path *field.Path) field.ErrorList {
	values := path.Child("values")
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			return field.ErrorList{field.Required(values, "must be specified when `operator` is 'In' or 'NotIn'")}
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			return field.ErrorList{field.Forbidden(values,
				"may not be specified when `operator` is 'Exists' or 'DoesNotExist'")}
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			return field.ErrorList{field.Required(values,
				"must be specified single value when `operator` is 'Lt' or 'Gt'")}
		}
	default:
		return field.ErrorList{field.Invalid(path.Child("operator"), r.Operator, "not a valid selector operator")}
	}
	return nil
}

func validatePodTerms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm,
	path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range required {
		if field.Enough(errs) {
			break
		}
		errs = append(errs,
			validatePodTerm(&required[i], path.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i))...)
	}
	for i := range preferred {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
		errs = append(errs, weight(preferred[i].Weight, idxPath)...)
		errs = append(errs, validatePodTerm(&preferred[i].PodAffinityTerm, idxPath.Child("podAffinityTerm"))...)
	}
	return errs
}

func validatePodTerm(t *corev1.PodAffinityTerm, path *field.Path) field.ErrorList {
	errs := validate.Selector(t.LabelSelector, path.Child("labelSelector"))
	errs = append(errs, validate.Selector(t.NamespaceSelector, path.Child("namespaceSelector"))...)
	for _, ns := range t.Namespaces {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.DnsLabel(path.Child("namespace"), ns)...)
	}
	errs = append(errs, validateMatchLabelKeys(t, path)...)
	if t.TopologyKey == "" {
		errs = append(errs, field.Required(path.Child("topologyKey"), "can not be empty"))
	}
	return append(errs, validate.QualifiedName(path.Child("topologyKey"), t.TopologyKey)...)
}

// validateMatchLabelKeys checks the keys that get their values from the incoming pod (KEP-3633).
func validateMatchLabelKeys(t *corev1.PodAffinityTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	keys := func(list []string, path *field.Path) {
		if len(list) > 0 && t.LabelSelector == nil {
			errs = append(errs, field.Forbidden(path, "must not be specified when labelSelector is not set"))
			return
		}
		for i, key := range list {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, validate.QualifiedName(path.Index(i), key)...)
		}
	}
	keys(t.MatchLabelKeys, path.Child("matchLabelKeys"))
	keys(t.MismatchLabelKeys, path.Child("mismatchLabelKeys"))
	if t.LabelSelector != nil {
		// The selector already has an expression for each of the keys.
		seen := map[string]bool{}
		for key := range t.LabelSelector.MatchLabels {
			seen[key] = true
		}
		matched := validate.Members(t.MatchLabelKeys, validate.StringKey)
		for _, r := range t.LabelSelector.MatchExpressions {
			if field.Enough(errs) {
				break
			}
			if seen[r.Key] && matched(r.Key) {
				errs = append(errs, field.Invalid(path.Index(slices.Index(t.MatchLabelKeys, r.Key)), r.Key,
					"exists in both matchLabelKeys and labelSelector"))
			}
			seen[r.Key] = true
		}
	}
	mismatched := validate.Members(t.MismatchLabelKeys, validate.StringKey)
	for i, key := range t.MatchLabelKeys {
		if field.Enough(errs) {
			break
		}
		if mismatched(key) {
			errs = append(errs, field.Invalid(path.Child("matchLabelKeys").Index(i), key,
				"exists in both matchLabelKeys and mismatchLabelKeys"))
		}
	}
	return errs
}

// ValidateTolerations checks the tolerations of a pod, or of a runtime class for its pods.
func ValidateTolerations(tolerations []corev1.Toleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range tolerations {
		if field.Enough(errs) {
			break
		}
		t, idxPath := &tolerations[i], path.Index(i)
		if t.Key != "" {
			errs = append(errs, validate.QualifiedName(idxPath.Child("key"), t.Key)...)
		} else if t.Operator != corev1.TolerationOpExists {
			errs = append(errs, field.Invalid(idxPath.Child("operator"), t.Operator,
				"operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			errs = append(errs, field.Invalid(idxPath.Child("effect"), t.Effect, "effect must be 'NoExecute' when "+
				"`tolerationSeconds` is set"))
		}
		switch t.Operator {
		case corev1.TolerationOpEqual, "":
			if complaints := naming.IsValidLabelValue(t.Value); len(complaints) > 0 {
				errs = append(errs, field.Invalid(idxPath.Child("operator"), t.Value, strings.Join(complaints, ";")))
			}
		case corev1.TolerationOpExists:
			if t.Value != "" {
				errs = append(errs,
					field.Invalid(idxPath.Child("operator"), t.Value,
						"value must be empty when `operator` is 'Exists'"))
			}
		default:
			errs = append(errs, field.NotSupported(idxPath.Child("operator"), t.Operator,
				[]corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
		}
		if t.Effect != "" {
			errs = append(errs, ValidateTaintEffect(t.Effect, idxPath.Child("effect"))...)
		}
	}
	return errs
}

// ValidateTaintEffect requires one of the effects of a taint.
func ValidateTaintEffect(e corev1.TaintEffect, path *field.Path) field.ErrorList {
	if e == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return validate.OneOf(path, e, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
		corev1.TaintEffectNoExecute)
}

// TimelessToleration returns a toleration without its seconds, as Toleration.MatchToleration compares it.
func TimelessToleration(t *corev1.Toleration) corev1.Toleration {
	return corev1.Toleration{Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect}
}

// TolerationKey returns a toleration's identity, including its seconds.
func TolerationKey(t *corev1.Toleration) any {
	if t.TolerationSeconds == nil {
		return TimelessToleration(t)
	}
	return [2]any{TimelessToleration(t), *t.TolerationSeconds}
}

func validateSpread(constraints []corev1.TopologySpreadConstraint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	again := repeatedLater(constraints)
	for i := range constraints {
		if field.Enough(errs) {
			break
		}
		c, idxPath := &constraints[i], path.Index(i)
		errs = append(errs, positiveSpread(idxPath.Child("maxSkew"), c.MaxSkew)...)
		if c.TopologyKey == "" {
			errs = append(errs, field.Required(idxPath.Child("topologyKey"), "can not be empty"))
		}
		errs = append(errs, validate.OneOf(idxPath.Child("whenUnsatisfiable"), c.WhenUnsatisfiable,
			corev1.DoNotSchedule,
			corev1.ScheduleAnyway)...)
		if again[i] {
			errs = append(errs, field.Duplicate(idxPath.Child("{topologyKey, whenUnsatisfiable}"),
				fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable)))
		}
		if c.MinDomains != nil {
			errs = append(errs, positiveSpread(idxPath.Child("minDomains"), *c.MinDomains)...)
			if c.WhenUnsatisfiable != corev1.DoNotSchedule {
				errs = append(errs, field.Invalid(idxPath.Child("minDomains"), *c.MinDomains,
					fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule,
						c.WhenUnsatisfiable)))
			}
		}
		if p := c.NodeAffinityPolicy; p != nil {
			errs = append(errs, validate.OneOf(idxPath.Child("nodeAffinityPolicy"), *p, corev1.NodeInclusionPolicyHonor,
				corev1.NodeInclusionPolicyIgnore)...)
		}
		if p := c.NodeTaintsPolicy; p != nil {
			errs = append(errs, validate.OneOf(idxPath.Child("nodeTaintsPolicy"), *p, corev1.NodeInclusionPolicyHonor,
				corev1.NodeInclusionPolicyIgnore)...)
		}
		errs = append(errs, validateSpreadKeys(c, idxPath.Child("matchLabelKeys"))...)
		errs = append(errs, validate.Selector(c.LabelSelector, idxPath.Child("labelSelector"))...)
	}
	return errs
}

// repeatedLater reports, for each constraint, whether a later one has the same topology key and whenUnsatisfiable.
func repeatedLater(constraints []corev1.TopologySpreadConstraint) []bool {
	again := make([]bool, len(constraints))
	later := make(map[[2]string]bool, len(constraints))
	for i, c := range slices.Backward(constraints) {
		key := [2]string{c.TopologyKey, string(c.WhenUnsatisfiable)}
		again[i], later[key] = later[key], true
	}
	return again
}

func validateSpreadKeys(c *corev1.TopologySpreadConstraint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(c.MatchLabelKeys) > 0 && c.LabelSelector == nil {
		errs = append(errs, field.Forbidden(path, "must not be specified when labelSelector is not set"))
	}
	selected := selectedKeys(c.LabelSelector)
	for i, key := range c.MatchLabelKeys {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.QualifiedName(path.Index(i), key)...)
		if selected(key) {
			errs = append(errs, field.Invalid(path.Index(i), key, "exists in both matchLabelKeys and labelSelector"))
		}
	}
	return errs
}

// selectedKeys returns a function that reports whether a selector uses a key. A nil selector uses none.
func selectedKeys(s *metav1.LabelSelector) func(key string) bool {
	if s == nil {
		return func(string) bool { return false }
	}
	expressed := validate.Members(s.MatchExpressions, func(r *metav1.LabelSelectorRequirement) string { return r.Key })
	return func(key string) bool {
		_, ok := s.MatchLabels[key]
		return ok || expressed(key)
	}
}

func positiveSpread(path *field.Path, n int32) field.ErrorList {
	if n > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, n, "must be greater than zero")}
}
