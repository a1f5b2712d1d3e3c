package flowcontrol

import (
	"fmt"
	"math"
	"slices"
	"strings"

	flowv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/equal"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/flowcontrol/mandatory"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func validateFlowSchema(s *flowv1.FlowSchema) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	fldPath, n := path.Child("matchingPrecedence"), s.Spec.MatchingPrecedence
	if n <= 0 {
		errs = append(errs, field.Invalid(fldPath, n, "must be a positive value"))
	}
	if n > flowv1.FlowSchemaMaxMatchingPrecedence {
		errs = append(errs,
			field.Invalid(fldPath, n,
				fmt.Sprintf("must not be greater than %v", flowv1.FlowSchemaMaxMatchingPrecedence)))
	}
	if n == 1 && s.Name != flowv1.FlowSchemaNameExempt {
		errs = append(errs, field.Invalid(fldPath, n, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if d := s.Spec.DistinguisherMethod; d != nil {
		errs = append(errs, validate.OneOf(path.Child("distinguisherMethod", "type"), d.Type,
			flowv1.FlowDistinguisherMethodByNamespaceType, flowv1.FlowDistinguisherMethodByUserType)...)
	}
	if name, fldPath := s.Spec.PriorityLevelConfiguration.Name, path.Child("priorityLevelConfiguration",
		"name"); name == "" {
		errs = append(errs, field.Required(fldPath, "must reference a priority level"))
	} else {
		errs = append(errs, validate.DnsSubdomain(fldPath, name)...)
	}
	for i := range s.Spec.Rules {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateFlowRule(&s.Spec.Rules[i], path.Child("rules").Index(i))...)
	}
	errs = append(errs, validateFlowConditions(s.Status.Conditions)...)
	return append(errs, validateMandatorySchema(s)...)
}

func validateFlowRule(r *flowv1.PolicyRulesWithSubjects, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Subjects) == 0 {
		errs = append(errs, field.Required(path.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range r.Subjects {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateFlowSubject(&r.Subjects[i], path.Child("subjects").Index(i))...)
	}
	if len(r.ResourceRules)+len(r.NonResourceRules) == 0 {
		errs = append(errs,
			field.Required(path, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range r.ResourceRules {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateFlowResources(&r.ResourceRules[i], path.Child("resourceRules").Index(i))...)
	}
	for i, rule := range r.NonResourceRules {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("nonResourceRules").Index(i)
		errs = append(errs, validateFlowVerbs(rule.Verbs, idxPath.Child("verbs"))...)
		urls := idxPath.Child("nonResourceURLs")
		errs = append(errs, wildcardAlone(rule.NonResourceURLs, urls, "nonResourceURLs must contain at least one value",
			"non-resource URLs")...)
		for k, url := range rule.NonResourceURLs {
			if field.Enough(errs) {
				break
			}
			if problem := nonResourcePath(url); problem != "" && !slices.Contains(rule.NonResourceURLs, "*") {
				errs = append(errs, field.Invalid(urls.Index(k), url, problem))
			}
		}
	}
	return errs
}

// validateFlowSubject requires the field of the subject's kind and rejects the others.
func validateFlowSubject(s *flowv1.Subject, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	missing := func(name string) {
		errs = append(errs, field.Required(path.Child(name), name+" is required when subject kind is '"+
			string(s.Kind)+"'"))
	}
	switch account := s.ServiceAccount; s.Kind {
	case flowv1.SubjectKindServiceAccount:
		if account == nil {
			missing("serviceAccount")
			break
		}
		fldPath := path.Child("serviceAccount")
		if account.Name == "" {
			errs = append(errs, field.Required(fldPath.Child("name"), ""))
		} else if account.Name != flowv1.NameAll {
			errs = append(errs,
				validate.Complaints(fldPath.Child("name"), account.Name,
					naming.NameIsDNSSubdomain(account.Name, false))...)
		}
		if account.Namespace == "" {
			errs = append(errs,
				field.Required(fldPath.Child("namespace"), "must specify namespace for service account"))
		} else {
			errs = append(errs, validate.DnsLabel(fldPath.Child("namespace"), account.Namespace)...)
		}
	case flowv1.SubjectKindUser:
		if s.User == nil {
			missing("user")
		} else {
			errs = append(errs, validate.Required(path.Child("user", "name"), s.User.Name)...)
		}
	case flowv1.SubjectKindGroup:
		if s.Group == nil {
			missing("group")
		} else {
			errs = append(errs, validate.Required(path.Child("group", "name"), s.Group.Name)...)
		}
	default:
		return validate.OneOf(path.Child("kind"), s.Kind, flowv1.SubjectKindGroup, flowv1.SubjectKindServiceAccount,
			flowv1.SubjectKindUser)
	}
	for _, other := range []struct {
		name string
		kind flowv1.SubjectKind
		set  bool
	}{
		{"serviceAccount", flowv1.SubjectKindServiceAccount, s.ServiceAccount != nil},
		{"user", flowv1.SubjectKindUser, s.User != nil}, {"group", flowv1.SubjectKindGroup, s.Group != nil},
	} {
		if other.set && other.kind != s.Kind {
			errs = append(errs, field.Forbidden(path.Child(other.name), fmt.Sprintf("%s is forbidden when subject "+
				"kind is not '%s'", other.name, other.kind)))
		}
	}
	return errs
}

func validateFlowResources(r *flowv1.ResourcePolicyRule, path *field.Path) field.ErrorList {
	errs := validateFlowVerbs(r.Verbs, path.Child("verbs"))
	errs = append(errs, wildcardAlone(r.APIGroups, path.Child("apiGroups"),
		"resource rules must supply at least one api group", "api groups")...)
	errs = append(errs, wildcardAlone(r.Resources, path.Child("resources"),
		"resource rules must supply at least one resource", "resources")...)
	fldPath := path.Child("namespaces")
	switch {
	case len(r.Namespaces) == 0 && !r.ClusterScope:
		errs = append(errs,
			field.Required(fldPath, "resource rules that are not cluster scoped must supply at least one namespace"))
	case slices.Contains(r.Namespaces, flowv1.NamespaceEvery):
		errs = append(errs, wildcardAlone(r.Namespaces, fldPath, "", "namespaces")...)
	default:
		for i, name := range r.Namespaces {
			if field.Enough(errs) {
				break
			}
			for _, complaint := range naming.NameIsDNSLabel(name, false) {
				if field.Enough(errs) {
					break
				}
				errs = append(errs, field.Invalid(fldPath.Index(i), name, "each member of this list must be '*' or a "+
					"DNS-1123 label; "+complaint))
			}
		}
	}
	return errs
}

var flowVerbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}

func validateFlowVerbs(verbs []string, path *field.Path) field.ErrorList {
	errs := wildcardAlone(verbs, path, "verbs must contain at least one value", "verbs")
	unknown := func(verb string) bool { return !slices.Contains(flowVerbs, verb) }
	if !slices.Contains(verbs, flowv1.VerbAll) && slices.ContainsFunc(verbs, unknown) {
		errs = append(errs, field.NotSupported(path, verbs, flowVerbs))
	}
	return errs
}

// wildcardAlone requires a list that is not empty. "*" must be its only element.
func wildcardAlone(list []string, path *field.Path, empty, noun string) field.ErrorList {
	switch {
	case len(list) == 0:
		return field.ErrorList{field.Required(path, empty)}
	case len(list) > 1 && slices.Contains(list, "*"):
		return field.ErrorList{field.Invalid(path, list, "if '*' is present, must not specify other "+noun)}
	}
	return nil
}

// nonResourcePath returns the reason why a path is invalid, or "". It may end in "/*".
func nonResourcePath(path string) string {
	stars := strings.Count(path, "*")
	switch {
	case path == "":
		return "must not be empty"
	case path == "/":
		return ""
	case !strings.HasPrefix(path, "/"):
		return "must start with slash"
	case strings.Contains(path, " "):
		return "must not contain white-space"
	case strings.Contains(path, "//"):
		return "must not contain double slash"
	case stars > 1 || stars == 1 && !strings.HasSuffix(path, "/*"):
		return "wildcard can only do suffix matching"
	}
	return ""
}

func validateFlowConditions(conditions []flowv1.FlowSchemaCondition) field.ErrorList {
	types := make([]string, len(conditions))
	for i, c := range conditions {
		types[i] = string(c.Type)
	}
	return validateConditionTypes(types)
}

func validateLevelConditions(conditions []flowv1.PriorityLevelConfigurationCondition) field.ErrorList {
	types := make([]string, len(conditions))
	for i, c := range conditions {
		types[i] = string(c.Type)
	}
	return validateConditionTypes(types)
}

func validateConditionTypes(types []string) field.ErrorList {
	var errs field.ErrorList
	var before validate.Seen
	for i, kind := range types {
		if field.Enough(errs) {
			break
		}
		typePath := field.NewPath("status", "conditions").Index(i).Child("type")
		if validate.Repeated(&before, types[:i], kind) {
			errs = append(errs, field.Duplicate(typePath, kind))
		}
		if kind == "" {
			errs = append(errs, field.Required(typePath, "must not be empty"))
		}
	}
	return errs
}

func validatePriorityLevel(l *flowv1.PriorityLevelConfiguration) field.ErrorList {
	path, spec := field.NewPath("spec"), &l.Spec
	var errs field.ErrorList
	if (l.Name == flowv1.PriorityLevelConfigurationNameExempt) != (spec.Type == flowv1.PriorityLevelEnablementExempt) {
		errs = append(errs,
			field.Invalid(path.Child("type"), spec.Type, "type must be 'Exempt' if and only if name is 'exempt'"))
	}
	switch spec.Type {
	case flowv1.PriorityLevelEnablementExempt:
		if spec.Limited != nil {
			errs = append(errs, field.Forbidden(path.Child("limited"), "must be nil if the type is not Limited"))
		}
		if e := spec.Exempt; e != nil {
			errs = append(errs, validateShares(e.NominalConcurrencyShares, e.LendablePercent, path.Child("exempt"))...)
		}
	case flowv1.PriorityLevelEnablementLimited:
		if spec.Exempt != nil {
			errs = append(errs, field.Forbidden(path.Child("exempt"), "must be nil if the type is Limited"))
		}
		if spec.Limited == nil {
			errs = append(errs, field.Required(path.Child("limited"), "must not be empty when type is Limited"))
		} else {
			errs = append(errs, validateLimited(spec.Limited, path.Child("limited"))...)
		}
	default:
		errs = append(errs, validate.OneOf(path.Child("type"), spec.Type, flowv1.PriorityLevelEnablementExempt,
			flowv1.PriorityLevelEnablementLimited)...)
	}
	errs = append(errs, validateLevelConditions(l.Status.Conditions)...)
	return append(errs, validateMandatoryLevel(l)...)
}

func validateShares(shares, lendable *int32, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if n := ptr.Deref(shares, 0); n < 0 {
		errs = append(errs, field.Invalid(path.Child("nominalConcurrencyShares"), n, "must be a non-negative integer"))
	}
	if p := ptr.Deref(lendable, 0); p < 0 || p > 100 {
		errs = append(errs, field.Invalid(path.Child("lendablePercent"), p, "must be between 0 and 100, inclusive"))
	}
	return errs
}

func validateLimited(l *flowv1.LimitedPriorityLevelConfiguration, path *field.Path) field.ErrorList {
	errs := validateShares(l.NominalConcurrencyShares, l.LendablePercent, path)
	if p := ptr.Deref(l.BorrowingLimitPercent, 0); p < 0 {
		errs = append(errs, field.Invalid(path.Child("borrowingLimitPercent"), p,
			"if specified, must be a non-negative integer"))
	}
	fldPath, q := path.Child("limitResponse"), l.LimitResponse.Queuing
	switch l.LimitResponse.Type {
	case flowv1.LimitResponseTypeReject:
		if q != nil {
			errs = append(errs,
				field.Forbidden(fldPath.Child("queuing"), "must be nil if limited.limitResponse.type is not Limited"))
		}
	case flowv1.LimitResponseTypeQueue:
		if q == nil {
			errs = append(errs,
				field.Required(fldPath.Child("queuing"), "must not be empty if limited.limitResponse.type is Limited"))
		} else {
			errs = append(errs, validateQueues(q, fldPath.Child("queuing"))...)
		}
	default:
		errs = append(errs, validate.OneOf(fldPath.Child("type"), l.LimitResponse.Type, flowv1.LimitResponseTypeQueue,
			flowv1.LimitResponseTypeReject)...)
	}
	return errs
}

// validateQueues limits the number of queues and the hand size to the capacity of a 60-bit hash: shuffle sharding
// deals each flow a hand of queues, one queue at a time.
func validateQueues(q *flowv1.QueuingConfiguration, path *field.Path) field.ErrorList {
	const maxQueues, hashBits = 10_000_000, 60
	var errs field.ErrorList
	for _, f := range []validate.Count{{"queueLengthLimit", q.QueueLengthLimit}, {"queues", q.Queues},
		{"handSize", q.HandSize}} {
		if f.N <= 0 {
			errs = append(errs, field.Invalid(path.Child(f.Name), f.N, "must be positive"))
		}
	}
	if q.Queues > maxQueues {
		errs = append(errs, field.Invalid(path.Child("queues"), q.Queues,
			fmt.Sprintf("must not be greater than %d", maxQueues)))
	}
	hand := path.Child("handSize")
	switch {
	case q.HandSize <= 0:
	case q.HandSize > q.Queues:
		errs = append(errs,
			field.Invalid(hand, q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", q.Queues)))
	case entropyBits(q.Queues, q.HandSize) > hashBits:
		errs = append(errs, field.Invalid(hand, q.HandSize, fmt.Sprintf("required entropy bits of deckSize %d and "+
			"handSize %d should not be greater than %d", q.Queues, q.HandSize, hashBits)))
	}
	return errs
}

func entropyBits(deck, hand int32) int {
	return int(math.Ceil(math.Log2(float64(deck)) * float64(hand)))
}

// validateMandatorySchema rejects a change of a fixed spec.
func validateMandatorySchema(s *flowv1.FlowSchema) field.ErrorList {
	for _, fixed := range mandatory.FlowSchemas() {
		if s.Name == fixed.Name && !equal.Semantic(&s.Spec, &fixed.Spec) {
			return fixedSpec(s.Name, s.Spec)
		}
	}
	return nil
}

func validateMandatoryLevel(l *flowv1.PriorityLevelConfiguration) field.ErrorList {
	for _, fixed := range mandatory.PriorityLevels() {
		if l.Name == fixed.Name && !equal.Semantic(&l.Spec, mandatory.Spec(fixed, l)) {
			return fixedSpec(l.Name, l.Spec)
		}
	}
	return nil
}

func fixedSpec(name string, spec any) field.ErrorList {
	return field.ErrorList{field.Invalid(field.NewPath("spec"), spec,
		fmt.Sprintf("spec of '%s' must equal the fixed value", name))}
}
