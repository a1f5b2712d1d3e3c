package admission

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsecurityapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
)

// podSecurity checks pods against the Pod Security Standards that labels of the namespace name; Kubernetes' own
// library has the checks. The mode enforce rejects pods; warn and audit report them, and the templates of
// workloads. https://kubernetes.io/docs/concepts/security/pod-security-admission/
type podSecurity struct {
	cluster   Cluster
	evaluator func() policy.Evaluator // made when first needed: few namespaces use it
	defaults  podsecurityapi.Policy
	exempt    exemptions
	decisions *prometheus.CounterVec
}

type exemptions struct {
	Usernames      []string `json:"usernames"`
	Namespaces     []string `json:"namespaces"`
	RuntimeClasses []string `json:"runtimeClasses"`
}

// maxPodsChecked limits the pods of a namespace that are checked when its labels change.
const maxPodsChecked = 3000

// templates are core kinds that contain a pod template.
var templates = []string{"replicationcontrollers", "podtemplates"}

func podSecurityRules() []Rule {
	rules := []Rule{
		on(pods, Create, Update).with("", "ephemeralcontainers", "resize"), on(namespaces, Create, Update),
		on(group("batch", "jobs"), Create, Update), on(group("batch", "cronjobs"), Create, Update),
	}
	for _, name := range templates {
		rules = append(rules, on(core(name), Create, Update))
	}
	for _, name := range []string{"deployments", "replicasets", "statefulsets", "daemonsets"} {
		rules = append(rules, on(group("apps", name), Create, Update))
	}
	return rules
}

func newPodSecurity(env *Env) (Plugin, error) {
	var config struct {
		Defaults struct {
			Enforce        string `json:"enforce"`
			EnforceVersion string `json:"enforce-version"`
			Audit          string `json:"audit"`
			AuditVersion   string `json:"audit-version"`
			Warn           string `json:"warn"`
			WarnVersion    string `json:"warn-version"`
		} `json:"defaults"`
		Exemptions exemptions `json:"exemptions"`
	}
	if err := env.Options.Config.into("PodSecurity", &config); err != nil {
		return nil, err
	}
	d := config.Defaults
	defaults, errs := podsecurityapi.PolicyToEvaluate(labelsOf(map[string]string{
		podsecurityapi.EnforceLevelLabel: d.Enforce, podsecurityapi.EnforceVersionLabel: d.EnforceVersion,
		podsecurityapi.AuditLevelLabel: d.Audit, podsecurityapi.AuditVersionLabel: d.AuditVersion,
		podsecurityapi.WarnLevelLabel: d.Warn, podsecurityapi.WarnVersionLabel: d.WarnVersion,
	}), privilegedPolicy)
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return &podSecurity{
		cluster: env.Cluster, evaluator: sync.OnceValue(newEvaluator), defaults: defaults, exempt: config.Exemptions,
		decisions: env.Metrics.podSecurity,
	}, nil
}

func newEvaluator() policy.Evaluator {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		panic("admission: the library's own checks: " + err.Error())
	}
	return evaluator
}

var privilegedPolicy = podsecurityapi.Policy{
	Enforce: podsecurityapi.LevelVersion{Level: podsecurityapi.LevelPrivileged,
		Version: podsecurityapi.LatestVersion()},
	Audit: podsecurityapi.LevelVersion{Level: podsecurityapi.LevelPrivileged,
		Version: podsecurityapi.LatestVersion()},
	Warn: podsecurityapi.LevelVersion{Level: podsecurityapi.LevelPrivileged,
		Version: podsecurityapi.LatestVersion()},
}

// labelsOf returns the labels that have a value.
func labelsOf(labels map[string]string) map[string]string {
	for key, value := range labels {
		if value == "" {
			delete(labels, key)
		}
	}
	return labels
}

func (p *podSecurity) Validate(ctx context.Context, a *Attributes) error {
	if ns, ok := a.Object.(*corev1.Namespace); ok {
		return p.namespace(ctx, a, ns)
	}
	switch {
	case slices.Contains(p.exempt.Namespaces, a.Namespace):
		auditPodSecurity(a, podsecurityapi.ExemptionReasonAnnotationKey, "namespace")
		return nil
	case slices.Contains(p.exempt.Usernames, a.User.Name):
		auditPodSecurity(a, podsecurityapi.ExemptionReasonAnnotationKey, "user")
		return nil
	}
	ns, err := get[*corev1.Namespace](ctx, p.cluster, namespaces, "", a.Namespace)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to lookup namespace %q", a.Namespace))
	}
	policies, errs := podsecurityapi.PolicyToEvaluate(ns.Labels, p.defaults)
	if len(errs) == 0 && policies.FullyPrivileged() {
		if _, ok := a.Object.(*corev1.Pod); ok {
			auditPodSecurity(a, podsecurityapi.EnforcedPolicyAnnotationKey, policies.Enforce.String())
		}
		return nil
	}
	if len(errs) > 0 {
		a.Audit("pod-security.kubernetes.io/error", fmt.Sprintf("Failed to parse policy: %v", errs.ToAggregate()))
	}
	if pod, ok := a.Object.(*corev1.Pod); ok {
		if a.Old != nil && !concernsSecurity(pod, a.Old.(*corev1.Pod)) {
			return nil
		}
		return p.check(a, policies, &pod.ObjectMeta, &pod.Spec, true)
	}
	if template := templateOf(a.Object); template != nil {
		return p.check(a, policies, &template.ObjectMeta, &template.Spec, false)
	}
	return nil
}

// auditPodSecurity annotates an audit event with a fact that is true of most pods. It is not worth a line in the
// server's log.
func auditPodSecurity(a *Attributes, key, value string) {
	if a.Audited {
		a.Audit(podsecurityapi.AuditAnnotationPrefix+key, value)
	}
}

func templateOf(obj api.Object) *corev1.PodTemplateSpec {
	switch o := obj.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.ReplicaSet:
		return &o.Spec.Template
	case *appsv1.StatefulSet:
		return &o.Spec.Template
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	case *batchv1.Job:
		return &o.Spec.Template
	case *batchv1.CronJob:
		return &o.Spec.JobTemplate.Spec.Template
	case *corev1.PodTemplate:
		return &o.Template
	case *corev1.ReplicationController:
		return o.Spec.Template
	}
	return nil
}

// check evaluates a pod, or a workload's template, by each of the three modes.
func (p *podSecurity) check(a *Attributes, policies podsecurityapi.Policy, meta *metav1.ObjectMeta,
	spec *corev1.PodSpec, enforce bool) error {
	if spec.RuntimeClassName != nil && slices.Contains(p.exempt.RuntimeClasses, *spec.RuntimeClassName) {
		auditPodSecurity(a, podsecurityapi.ExemptionReasonAnnotationKey, "runtimeClass")
		return nil
	}
	results := map[podsecurityapi.LevelVersion]policy.AggregateCheckResult{}
	evaluate := func(mode string, lv podsecurityapi.LevelVersion) policy.AggregateCheckResult {
		result, ok := results[lv]
		if !ok {
			result = policy.AggregateCheckResults(p.evaluator().EvaluatePod(lv, meta, spec))
			results[lv] = result
		}
		p.count(a, mode, lv, result.Allowed)
		return result
	}
	if enforce {
		auditPodSecurity(a, podsecurityapi.EnforcedPolicyAnnotationKey, policies.Enforce.String())
		if r := evaluate("enforce", policies.Enforce); !r.Allowed {
			return a.Forbid(fmt.Errorf("violates PodSecurity %q: %s", policies.Enforce.String(), r.ForbiddenDetail()))
		}
	}
	if r := evaluate("audit", policies.Audit); !r.Allowed {
		a.Audit(podsecurityapi.AuditAnnotationPrefix+podsecurityapi.AuditViolationsAnnotationKey,
			fmt.Sprintf("would violate PodSecurity %q: %s", policies.Audit.String(), r.ForbiddenDetail()))
	}
	if r := evaluate("warn", policies.Warn); !r.Allowed {
		a.Warn(fmt.Sprintf("would violate PodSecurity %q: %s", policies.Warn.String(), r.ForbiddenDetail()))
	}
	return nil
}

func (p *podSecurity) count(a *Attributes, mode string, lv podsecurityapi.LevelVersion, allowed bool) {
	decision, resource := "allow", "controller"
	if !allowed {
		decision = "deny"
	} else if mode != "enforce" {
		return
	}
	if a.Resource.Resource == "pods" {
		resource = "pod"
	}
	operation := "create"
	if a.Operation == Update {
		operation = "update"
	}
	p.decisions.WithLabelValues(decision, string(lv.Level), lv.Version.String(), mode, operation, resource,
		a.Subresource).Inc()
}

// concernsSecurity reports whether an update changes the mutable fields that the standards check: images, and
// ephemeral containers.
func concernsSecurity(pod, old *corev1.Pod) bool {
	changed := func(is, was []corev1.Container) bool {
		return !slices.EqualFunc(is, was, func(a, b corev1.Container) bool { return a.Image == b.Image })
	}
	return changed(pod.Spec.Containers, old.Spec.Containers) ||
		changed(pod.Spec.InitContainers, old.Spec.InitContainers) ||
		slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool {
			i := slices.IndexFunc(old.Spec.EphemeralContainers, func(o corev1.EphemeralContainer) bool {
				return o.Name == c.Name
			})
			return i < 0 || old.Spec.EphemeralContainers[i].Image != c.Image
		})
}

// namespace rejects invalid labels, and warns of existing pods that the new labels would reject.
func (p *podSecurity) namespace(ctx context.Context, a *Attributes, ns *corev1.Namespace) error {
	policies, errs := podsecurityapi.PolicyToEvaluate(ns.Labels, p.defaults)
	if a.Operation == Create {
		if len(errs) > 0 {
			return apierrors.NewInvalid(a.Kind.GroupKind(), ns.Name, errs)
		}
		return nil
	}
	before, oldErrs := podsecurityapi.PolicyToEvaluate(a.Old.GetLabels(), p.defaults)
	if len(errs) > 0 && (len(oldErrs) == 0 || errs.ToAggregate().Error() != oldErrs.ToAggregate().Error()) {
		return apierrors.NewInvalid(a.Kind.GroupKind(), ns.Name, errs)
	}
	relaxed := policies.Enforce.Version == before.Enforce.Version &&
		podsecurityapi.CompareLevels(policies.Enforce.Level, before.Enforce.Level) < 1
	if policies.Enforce == before.Enforce || policies.Enforce.Level == podsecurityapi.LevelPrivileged || relaxed ||
		slices.Contains(p.exempt.Namespaces, ns.Name) {
		return nil
	}
	return p.warnOfPods(ctx, a, ns.Name, policies.Enforce)
}

// warnOfPods adds one warning for each violation, with the first pod that has it and the number of the others.
func (p *podSecurity) warnOfPods(ctx context.Context, a *Attributes, namespace string,
	lv podsecurityapi.LevelVersion) error {
	all, err := list[*corev1.Pod](ctx, p.cluster, pods, namespace)
	if err != nil {
		a.Warn("failed to list pods while checking new PodSecurity enforce level")
		return nil
	}
	checked := all[:min(len(all), maxPodsChecked)]
	var reasons []string
	violators := map[string][]string{}
	for _, pod := range checked {
		if slices.Contains(p.exempt.RuntimeClasses, ptr.Deref(pod.Spec.RuntimeClassName, "")) {
			continue
		}
		if r := policy.AggregateCheckResults(p.evaluator().EvaluatePod(lv, &pod.ObjectMeta, &pod.Spec)); !r.Allowed {
			reason := r.ForbiddenReason()
			if violators[reason] == nil {
				reasons = append(reasons, reason)
			}
			violators[reason] = append(violators[reason], pod.Name)
		}
	}
	if len(checked) < len(all) {
		a.Warn(fmt.Sprintf("new PodSecurity enforce level only checked against the first %d of %d existing pods",
			len(checked), len(all)))
	}
	if len(reasons) > 0 {
		a.Warn(fmt.Sprintf("existing pods in namespace %q violate the new PodSecurity enforce level %q",
			namespace, lv.String()))
	}
	for _, reason := range reasons {
		a.Warn(fmt.Sprintf("%s: %s", violatorsOf(violators[reason]), reason))
	}
	return nil
}

func violatorsOf(names []string) string {
	slices.Sort(names)
	switch len(names) {
	case 1:
		return names[0]
	case 2:
		return fmt.Sprintf("%s (and 1 other pod)", names[0])
	}
	return fmt.Sprintf("%s (and %d other pods)", names[0], len(names)-1)
}
