package api

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validatePodSpec checks the spec of a pod or of a pod template. podName is the pod's, or
// empty in a template.
func validatePodSpec(spec *corev1.PodSpec, podName string, path *field.Path) field.ErrorList {
	volumes, errs := validateVolumes(spec.Volumes, podName, path.Child("volumes"))
	checks := containerChecks{
		volumes:     volumes,
		claims:      make(map[string]bool, len(spec.ResourceClaims)),
		names:       make(map[string]bool, len(spec.Containers)+len(spec.InitContainers)),
		hostNetwork: spec.HostNetwork,
	}
	if spec.TerminationGracePeriodSeconds != nil {
		checks.grace = *spec.TerminationGracePeriodSeconds
	}
	for _, claim := range spec.ResourceClaims {
		checks.claims[claim.Name] = true
	}
	errs = append(errs, validateContainers(spec, &checks, path)...)
	errs = append(errs, validateHostPorts(spec.Containers, path.Child("containers"))...)
	errs = append(errs, validatePodPolicies(spec, path)...)
	errs = append(errs, validatePodNames(spec, path)...)
	errs = append(errs, validateDNSConfig(spec, path)...)
	errs = append(errs, validatePodSecurity(spec.SecurityContext, path.Child("securityContext"))...)
	errs = append(errs, metav1validation.ValidateLabels(spec.NodeSelector, path.Child("nodeSelector"))...)
	errs = append(errs, validateAffinity(spec.Affinity, path.Child("affinity"))...)
	errs = append(errs, validateTolerations(spec.Tolerations, path.Child("tolerations"))...)
	errs = append(errs, validateSpread(spec.TopologySpreadConstraints, path.Child("topologySpreadConstraints"))...)
	return append(errs, validatePodResources(spec, checks.claims, path)...)
}

func validateContainers(spec *corev1.PodSpec, checks *containerChecks, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), ""))
	}
	for i := range spec.Containers {
		c, at := &spec.Containers[i], path.Child("containers").Index(i)
		errs = append(errs, checks.container(c, at)...)
		errs = append(errs, checks.lifecycle(c, at)...)
		errs = append(errs, validateContainerRestart(c, at)...)
	}
	for i := range spec.InitContainers {
		c, at := &spec.InitContainers[i], path.Child("initContainers").Index(i)
		errs = append(errs, checks.container(c, at)...)
		if isSidecar(c) {
			errs = append(errs, checks.lifecycle(c, at)...)
		} else {
			errs = append(errs, checks.noLifecycle(c, at)...)
		}
		errs = append(errs, validateContainerRestart(c, at)...)
	}
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		errs = append(errs, checks.ephemeral(&c, spec, i, path.Child("ephemeralContainers").Index(i))...)
	}
	return errs
}

// ephemeral checks a container that was put into a running pod for debugging: it has
// no ports, probes, hooks or resources of its own.
func (k *containerChecks) ephemeral(c *corev1.Container, spec *corev1.PodSpec, i int, path *field.Path) field.ErrorList {
	errs := k.container(c, path)
	for name, set := range map[string]bool{
		"ports": len(c.Ports) > 0, "livenessProbe": c.LivenessProbe != nil, "readinessProbe": c.ReadinessProbe != nil,
		"startupProbe": c.StartupProbe != nil, "lifecycle": c.Lifecycle != nil, "resizePolicy": len(c.ResizePolicy) > 0,
		"resources": len(c.Resources.Limits)+len(c.Resources.Requests)+len(c.Resources.Claims) > 0,
	} {
		if set {
			errs = append(errs, field.Forbidden(path.Child(name), "cannot be set for an Ephemeral Container"))
		}
	}
	if target := spec.EphemeralContainers[i].TargetContainerName; target != "" && !namesContainer(spec, target) {
		errs = append(errs, field.NotFound(path.Child("targetContainerName"), target))
	}
	return errs
}

func namesContainer(spec *corev1.PodSpec, name string) bool {
	for _, list := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return true
			}
		}
	}
	return false
}

func validateContainerRestart(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.RestartPolicy != nil {
		errs = append(errs, oneOf(path.Child("restartPolicy"), *c.RestartPolicy,
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure)...)
	}
	rules := path.Child("restartPolicyRules")
	if len(c.RestartPolicyRules) > 0 && c.RestartPolicy == nil {
		errs = append(errs, field.Required(path.Child("restartPolicy"), "must specify restartPolicy when restart rules are used"))
	}
	if len(c.RestartPolicyRules) > 20 {
		errs = append(errs, field.TooMany(rules, len(c.RestartPolicyRules), 20))
	}
	for i, r := range c.RestartPolicyRules {
		at := rules.Index(i)
		errs = append(errs, requiredOneOf(at.Child("action"), r.Action, corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)...)
		if r.ExitCodes == nil {
			errs = append(errs, field.Required(at.Child("exitCodes"), "must be specified"))
			continue
		}
		errs = append(errs, requiredOneOf(at.Child("exitCodes", "operator"), r.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if len(r.ExitCodes.Values) > 255 {
			errs = append(errs, field.TooMany(at.Child("exitCodes", "values"), len(r.ExitCodes.Values), 255))
		}
	}
	return errs
}

func validatePodPolicies(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	errs := requiredOneOf(path.Child("restartPolicy"), spec.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	errs = append(errs, requiredOneOf(path.Child("dnsPolicy"), spec.DNSPolicy,
		corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone)...)
	if p := spec.PreemptionPolicy; p != nil {
		errs = append(errs, requiredOneOf(path.Child("preemptionPolicy"), *p, corev1.PreemptLowerPriority, corev1.PreemptNever)...)
	}
	if seconds := spec.ActiveDeadlineSeconds; seconds != nil && (*seconds < 1 || *seconds > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *seconds, utilvalidation.InclusiveRangeError(1, math.MaxInt32)))
	}
	if os := spec.OS; os != nil {
		errs = append(errs, requiredOneOf(path.Child("os", "name"), os.Name, corev1.Linux, corev1.Windows)...)
	}
	if spec.HostUsers != nil && !*spec.HostUsers && (spec.HostPID || spec.HostIPC) {
		for name, set := range map[string]bool{"hostPID": spec.HostPID, "hostIPC": spec.HostIPC} {
			if set {
				errs = append(errs, field.Forbidden(path.Child(name), "when `hostUsers` is false"))
			}
		}
	}
	if isTrue(spec.ShareProcessNamespace) && spec.HostPID {
		errs = append(errs, field.Invalid(path.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	return errs
}

// validatePodNames checks what names other objects or the pod on the network.
func validatePodNames(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	name := func(child, value string, check func(string) []string) {
		if value != "" {
			errs = append(errs, invalid(path.Child(child), value, check(value))...)
		}
	}
	name("serviceAccountName", spec.ServiceAccountName, func(s string) []string { return validation.ValidateServiceAccountName(s, false) })
	name("nodeName", spec.NodeName, utilvalidation.IsDNS1123Subdomain)
	name("hostname", spec.Hostname, utilvalidation.IsDNS1123Label)
	name("subdomain", spec.Subdomain, utilvalidation.IsDNS1123Label)
	name("priorityClassName", spec.PriorityClassName, utilvalidation.IsDNS1123Subdomain)
	name("schedulerName", spec.SchedulerName, utilvalidation.IsDNS1123Subdomain)
	if spec.RuntimeClassName != nil {
		errs = append(errs, dnsSubdomain(path.Child("runtimeClassName"), *spec.RuntimeClassName)...)
	}
	if override := spec.HostnameOverride; override != nil {
		at := path.Child("hostnameOverride")
		errs = append(errs, dnsSubdomain(at, *override)...)
		if len(*override) > 64 {
			errs = append(errs, field.TooLong(at, *override, 64))
		}
		if isTrue(spec.SetHostnameAsFQDN) {
			errs = append(errs, field.Forbidden(path.Child("setHostnameAsFQDN"), "cannot be set when `hostnameOverride` is set"))
		}
		if spec.HostNetwork {
			errs = append(errs, field.Forbidden(at, "cannot be set when `hostNetwork` is true"))
		}
	}
	for i, alias := range spec.HostAliases {
		at := path.Child("hostAliases").Index(i)
		errs = append(errs, validIP(at.Child("ip"), alias.IP)...)
		for j, host := range alias.Hostnames {
			errs = append(errs, dnsSubdomain(at.Child("hostnames").Index(j), host)...)
		}
	}
	for i, gate := range spec.ReadinessGates {
		errs = append(errs, qualifiedName(path.Child("readinessGates").Index(i).Child("conditionType"), string(gate.ConditionType))...)
	}
	gates := make(map[string]bool, len(spec.SchedulingGates))
	for i, gate := range spec.SchedulingGates {
		at := path.Child("schedulingGates").Index(i)
		errs = append(errs, qualifiedName(at, gate.Name)...)
		if gates[gate.Name] {
			errs = append(errs, field.Duplicate(at, gate.Name))
		}
		gates[gate.Name] = true
	}
	return errs
}

func validateDNSConfig(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	config, at := spec.DNSConfig, path.Child("dnsConfig")
	if spec.DNSPolicy == corev1.DNSNone {
		if config == nil {
			return field.ErrorList{field.Required(at, "must provide `dnsConfig` when `dnsPolicy` is None")}
		}
		if len(config.Nameservers) == 0 {
			errs = append(errs, field.Required(at.Child("nameservers"), "must provide at least one DNS nameserver when `dnsPolicy` is None"))
		}
	}
	if config == nil {
		return errs
	}
	const maxNameservers, maxSearches, maxSearchChars = 3, 32, 2048
	if n := len(config.Nameservers); n > maxNameservers {
		errs = append(errs, field.Invalid(at.Child("nameservers"), config.Nameservers, "must not have more than 3 nameservers"))
	}
	for i, ns := range config.Nameservers {
		errs = append(errs, validIP(at.Child("nameservers").Index(i), ns)...)
	}
	chars := 0
	for i, search := range config.Searches {
		chars += len(search) + 1
		if search == "." {
			continue
		}
		if n := len(search); n > 0 && search[n-1] == '.' {
			search = search[:n-1]
		}
		errs = append(errs, invalid(at.Child("searches").Index(i), search, utilvalidation.IsDNS1123SubdomainWithUnderscore(search))...)
	}
	if len(config.Searches) > maxSearches {
		errs = append(errs, field.Invalid(at.Child("searches"), config.Searches, "must not have more than 32 search paths"))
	}
	if chars-1 > maxSearchChars {
		errs = append(errs, field.Invalid(at.Child("searches"), config.Searches, "must not have more than 2048 characters (including spaces) in the search list"))
	}
	for i, option := range config.Options {
		if option.Name == "" {
			errs = append(errs, field.Required(at.Child("options").Index(i), "must not be empty"))
		}
	}
	return errs
}

func validatePodSecurity(sc *corev1.PodSecurityContext, path *field.Path) field.ErrorList {
	if sc == nil {
		return nil
	}
	errs := validUserAndGroup(sc.RunAsUser, sc.RunAsGroup, path)
	if sc.FSGroup != nil {
		errs = append(errs, invalid(path.Child("fsGroup"), *sc.FSGroup, utilvalidation.IsValidGroupID(*sc.FSGroup))...)
	}
	for i, group := range sc.SupplementalGroups {
		errs = append(errs, invalid(path.Child("supplementalGroups").Index(i), group, utilvalidation.IsValidGroupID(group))...)
	}
	if p := sc.FSGroupChangePolicy; p != nil {
		errs = append(errs, oneOf(path.Child("fsGroupChangePolicy"), *p, corev1.FSGroupChangeAlways, corev1.FSGroupChangeOnRootMismatch)...)
	}
	if p := sc.SupplementalGroupsPolicy; p != nil {
		errs = append(errs, oneOf(path.Child("supplementalGroupsPolicy"), *p, corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)...)
	}
	names := make(map[string]bool, len(sc.Sysctls))
	for i, s := range sc.Sysctls {
		at := path.Child("sysctls").Index(i).Child("name")
		switch {
		case s.Name == "":
			errs = append(errs, field.Required(at, ""))
		case names[s.Name]:
			errs = append(errs, field.Duplicate(at, s.Name))
		}
		names[s.Name] = true
	}
	errs = append(errs, validateSeccomp(sc.SeccompProfile, path.Child("seccompProfile"))...)
	return append(errs, validateAppArmor(sc.AppArmorProfile, path.Child("appArmorProfile"))...)
}

// validatePodResources checks the claims and amounts of the pod as a whole.
func validatePodResources(spec *corev1.PodSpec, claims map[string]bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, q := range spec.Overhead {
		at := path.Child("overhead").Key(string(name))
		errs = append(errs, validateResourceName(name, at)...)
		errs = append(errs, validateQuantity(name, q, at)...)
	}
	seen := map[string]bool{}
	for i, c := range spec.ResourceClaims {
		at := path.Child("resourceClaims").Index(i)
		switch {
		case c.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case seen[c.Name]:
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		default:
			errs = append(errs, dnsLabel(at.Child("name"), c.Name)...)
		}
		seen[c.Name] = true
		switch {
		case c.ResourceClaimName == nil && c.ResourceClaimTemplateName == nil:
			errs = append(errs, field.Invalid(at, c, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
		case c.ResourceClaimName != nil && c.ResourceClaimTemplateName != nil:
			errs = append(errs, field.Invalid(at, c, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"))
		}
	}
	if spec.Resources != nil {
		errs = append(errs, validateContainerResources(spec.Resources, claims, path.Child("resources"))...)
	}
	return errs
}

// validatePodTemplate checks the template of a workload.
func validatePodTemplate(t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabels(t.Labels, path.Child("labels"))
	errs = append(errs, validation.ValidateAnnotations(t.Annotations, path.Child("annotations"))...)
	errs = append(errs, validatePodSpec(&t.Spec, "", path.Child("spec"))...)
	if len(t.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template"))
	}
	return errs
}
