// Package podspec has the defaults, the validation and the warnings of corev1.PodSpec and of the types that it embeds.
// The core group uses them for pods and ReplicationControllers, the groups apps and batch for the pod templates of
// their workloads.
//
// Default and DefaultPod (default.go) fill a spec in. Validate checks one (validate.go), part by part: containers
// (container.go, with env.go, probe.go and resources.go), volumes (volume.go, projected.go), security contexts
// (security.go, os.go) and scheduling (scheduling.go). template.go checks a template, and that it fits its workload.
// WarnPod, WarnTemplate and WarnChangedTemplate (warn.go) return warnings. claim.go has all three for the spec of a
// persistent volume claim, since an ephemeral volume embeds one.
//
// The text of an error and the order of errors equal kube-apiserver's. The package does no I/O, and imports the kit
// and no group. The parts that only a pod has, such as its status, its updates and its subresources, are in api/core.
package podspec

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	podresource "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/resourcelist"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// Validate checks the spec of a pod or of a pod template. podName is empty for a template.
func Validate(spec *corev1.PodSpec, podName string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.TerminationGracePeriodSeconds == nil {
		errs = append(errs, field.Required(path.Child("terminationGracePeriodSeconds"), ""))
	}
	checks := containerChecks{
		volumes:   map[string]*corev1.VolumeSource{},
		claims:    map[string]bool{},
		names:     map[string]bool{},
		pod:       podName != "",
		hostUsers: spec.HostUsers == nil || *spec.HostUsers,
		restart:   spec.RestartPolicy,
		grace:     spec.TerminationGracePeriodSeconds,
	}
	errs = append(errs, validateVolumes(spec.Volumes, checks.volumes, podName, path.Child("volumes"))...)
	errs = append(errs, validateResourceClaimsOf(spec, path.Child("resourceClaims"))...)
	for _, claim := range spec.ResourceClaims {
		checks.claims[claim.Name] = claim.Name != ""
	}
	errs = append(errs, validateContainers(spec, &checks, path)...)
	errs = append(errs, validatePodResources(spec, path)...)
	errs = append(errs, validateHostNetworkPorts(spec, checks.pod, path.Child("containers"))...)
	errs = append(errs, validatePodPolicies(spec, path)...)
	errs = append(errs, validate.Labels(spec.NodeSelector, path.Child("nodeSelector"))...)
	errs = append(errs, validatePodSecurity(spec, path.Child("securityContext"))...)
	errs = append(errs, validateAffinity(spec.Affinity, path.Child("affinity"))...)
	errs = append(errs, validateDNSConfig(spec, path)...)
	errs = append(errs, validateSpread(spec.TopologySpreadConstraints, path.Child("topologySpreadConstraints"))...)
	errs = append(errs, validateHostProcess(spec, path)...)
	errs = append(errs, validateHostUsers(spec, path)...)
	errs = append(errs, validatePodNames(spec, path)...)
	errs = append(errs, ValidateTolerations(spec.Tolerations, path.Child("tolerations"))...)
	return append(errs, validateOS(spec, path)...)
}

// validateHostNetworkPorts requires host ports if the pod shares the node's network. A template may omit them, since
// they are defaulted in the pod.
func validateHostNetworkPorts(spec *corev1.PodSpec, pod bool, path *field.Path) field.ErrorList {
	if !spec.HostNetwork {
		return nil
	}
	var errs field.ErrorList
	for i := range spec.Containers {
		if field.Enough(errs) {
			break
		}
		for j, port := range spec.Containers[i].Ports {
			if field.Enough(errs) {
				break
			}
			if (pod || port.HostPort != 0) && port.HostPort != port.ContainerPort {
				errs = append(errs, field.Invalid(path.Index(i).Child("ports").Index(j).Child("hostPort"),
					port.HostPort,
					"must match `containerPort` when `hostNetwork` is true"))
			}
		}
	}
	return errs
}

func validateContainers(spec *corev1.PodSpec, checks *containerChecks, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), ""))
	}
	for i := range spec.Containers {
		if field.Enough(errs) {
			break
		}
		c, idxPath := &spec.Containers[i], path.Child("containers").Index(i)
		errs = append(errs, checks.container(c, idxPath)...)
		errs = append(errs, checks.lifecycle(c, idxPath)...)
		errs = append(errs, validateContainerRestart(c, idxPath)...)
	}
	errs = append(errs, validateHostPorts(spec.Containers, path.Child("containers"))...)
	for i := range spec.InitContainers {
		if field.Enough(errs) {
			break
		}
		c, idxPath := &spec.InitContainers[i], path.Child("initContainers").Index(i)
		errs = append(errs, checks.container(c, idxPath)...)
		errs = append(errs, validateHostPorts(spec.InitContainers[i:i+1], path.Child("initContainers"))...)
		if IsSidecar(c) {
			errs = append(errs, checks.lifecycle(c, idxPath)...)
		} else {
			errs = append(errs, checks.noLifecycle(c, idxPath)...)
		}
		errs = append(errs, validateContainerRestart(c, idxPath)...)
	}
	for i := range spec.EphemeralContainers {
		if field.Enough(errs) {
			break
		}
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		errs = append(errs, checks.ephemeral(&c, spec, i, path.Child("ephemeralContainers").Index(i))...)
	}
	return errs
}

// ephemeral checks a container that was added to a running pod for debugging. It has no ports, probes, hooks or
// resources.
func (k *containerChecks) ephemeral(c *corev1.Container, spec *corev1.PodSpec, i int,
	path *field.Path) field.ErrorList {
	errs := k.container(c, path)
	if target := spec.EphemeralContainers[i].TargetContainerName; target != "" && !NamesContainer(spec, target) {
		errs = append(errs, field.NotFound(path.Child("targetContainerName"), target))
	}
	const why = "cannot be set for an Ephemeral Container"
	for _, f := range []setField{
		{"ports", c.Ports != nil}, {"resources", c.Resources.Limits != nil || c.Resources.Requests != nil ||
			c.Resources.Claims != nil},
		{"resizePolicy", c.ResizePolicy != nil}, {"restartPolicy", c.RestartPolicy != nil},
		{"restartPolicyRules", c.RestartPolicyRules != nil},
		{"livenessProbe", c.LivenessProbe != nil}, {"readinessProbe", c.ReadinessProbe != nil},
		{"startupProbe", c.StartupProbe != nil},
		{"lifecycle", c.Lifecycle != nil},
	} {
		if f.set {
			errs = append(errs, field.Forbidden(path.Child(f.name), why))
		}
	}
	for i, m := range c.VolumeMounts {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("volumeMounts").Index(i)
		if m.SubPath != "" {
			errs = append(errs, field.Forbidden(idxPath.Child("subPath"), why))
		}
		if m.SubPathExpr != "" {
			errs = append(errs, field.Forbidden(idxPath.Child("subPathExpr"), why))
		}
	}
	return errs
}

// NamesContainer reports whether a main or init container has the name.
func NamesContainer(spec *corev1.PodSpec, name string) bool {
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
		errs = append(errs, validate.OneOf(path.Child("restartPolicy"), *c.RestartPolicy,
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever,
			corev1.ContainerRestartPolicyOnFailure)...)
	}
	rules := path.Child("restartPolicyRules")
	if len(c.RestartPolicyRules) > 0 && c.RestartPolicy == nil {
		errs = append(errs,
			field.Required(path.Child("restartPolicy"), "must specify restartPolicy when restart rules are used"))
	}
	if len(c.RestartPolicyRules) > 20 {
		errs = append(errs, field.TooMany(rules, len(c.RestartPolicyRules), 20))
	}
	for i, r := range c.RestartPolicyRules {
		if field.Enough(errs) {
			break
		}
		idxPath := rules.Index(i)
		errs = append(errs, validate.RequiredOneOf(idxPath.Child("action"), r.Action,
			corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)...)
		if r.ExitCodes == nil {
			errs = append(errs, field.Required(idxPath.Child("exitCodes"), "must be specified"))
			continue
		}
		errs = append(errs, validate.RequiredOneOf(idxPath.Child("exitCodes", "operator"), r.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if len(r.ExitCodes.Values) > 255 {
			errs = append(errs, field.TooMany(idxPath.Child("exitCodes", "values"), len(r.ExitCodes.Values), 255))
		}
	}
	return errs
}

func validatePodPolicies(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	errs := validate.RequiredOneOf(path.Child("restartPolicy"), spec.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	errs = append(errs, validate.RequiredOneOf(path.Child("dnsPolicy"), spec.DNSPolicy,
		corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)...)
	if p := spec.PreemptionPolicy; p != nil {
		errs = append(errs, validate.RequiredOneOf(path.Child("preemptionPolicy"), *p, corev1.PreemptLowerPriority,
			corev1.PreemptNever)...)
	}
	if seconds := spec.ActiveDeadlineSeconds; seconds != nil && (*seconds < 1 || *seconds > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *seconds,
			utilvalidation.InclusiveRangeError(1, math.MaxInt32)))
	}
	if ptr.Deref(spec.ShareProcessNamespace, false) && spec.HostPID {
		errs = append(errs, field.Invalid(path.Child("securityContext", "shareProcessNamespace"), true,
			"ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	return errs
}

// validatePodNames checks the names of other objects and the pod's names in the network.
func validatePodNames(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	name := func(child, value string, check func(string) []string) {
		if value != "" {
			errs = append(errs, validate.Complaints(path.Child(child), value, check(value))...)
		}
	}
	name("serviceAccountName", spec.ServiceAccountName, func(s string) []string {
		return naming.NameIsDNSSubdomain(s, false)
	})
	name("nodeName", spec.NodeName, naming.IsDNS1123Subdomain)
	name("hostname", spec.Hostname, naming.IsDNS1123Label)
	name("subdomain", spec.Subdomain, naming.IsDNS1123Label)
	name("priorityClassName", spec.PriorityClassName, naming.IsDNS1123Subdomain)
	name("schedulerName", spec.SchedulerName, naming.IsDNS1123Subdomain)
	if spec.RuntimeClassName != nil {
		errs = append(errs, validate.DnsSubdomain(path.Child("runtimeClassName"), *spec.RuntimeClassName)...)
	}
	if override := spec.HostnameOverride; override != nil {
		fldPath := path.Child("hostnameOverride")
		errs = append(errs, validate.DnsSubdomain(fldPath, *override)...)
		if len(*override) > 64 {
			errs = append(errs, field.TooLong(fldPath, *override, 64))
		}
		if ptr.Deref(spec.SetHostnameAsFQDN, false) {
			errs = append(errs, field.Forbidden(path.Child("setHostnameAsFQDN"),
				"cannot be set when `hostnameOverride` is set"))
		}
		if spec.HostNetwork {
			errs = append(errs, field.Forbidden(fldPath, "cannot be set when `hostNetwork` is true"))
		}
	}
	for i, alias := range spec.HostAliases {
		if field.Enough(errs) {
			break
		}
		fldPath := path.Child("hostAliases").Index(i)
		errs = append(errs, validate.IP(fldPath.Child("ip"), alias.IP)...)
		for j, host := range alias.Hostnames {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, validate.DnsSubdomain(fldPath.Child("hostnames").Index(j), host)...)
		}
	}
	for i, gate := range spec.ReadinessGates {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.QualifiedName(path.Child("readinessGates").Index(i).Child("conditionType"),
			string(gate.ConditionType))...)
	}
	gates := map[string]bool{}
	for i, gate := range spec.SchedulingGates {
		if field.Enough(errs) {
			break
		}
		fldPath := path.Child("schedulingGates").Index(i)
		errs = append(errs, validate.QualifiedName(fldPath, gate.Name)...)
		if gates[gate.Name] {
			errs = append(errs, field.Duplicate(fldPath, gate.Name))
		}
		gates[gate.Name] = true
	}
	return errs
}

func validateDNSConfig(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	config, fldPath := spec.DNSConfig, path.Child("dnsConfig")
	if spec.DNSPolicy == corev1.DNSNone {
		if config == nil {
			return field.ErrorList{field.Required(fldPath, "must provide `dnsConfig` when `dnsPolicy` is None")}
		}
		if len(config.Nameservers) == 0 {
			errs = append(errs, field.Required(fldPath.Child("nameservers"),
				"must provide at least one DNS nameserver "+
					"when `dnsPolicy` is None"))
		}
	}
	if config == nil || len(errs) > 0 {
		return errs
	}
	const maxNameservers, maxSearches, maxSearchChars = 3, 32, 2048
	if n := len(config.Nameservers); n > maxNameservers {
		errs = append(errs, field.Invalid(fldPath.Child("nameservers"), config.Nameservers,
			"must not have more than 3 nameservers"))
	}
	for i, ns := range config.Nameservers {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.IP(fldPath.Child("nameservers").Index(i), ns)...)
	}
	if len(config.Searches) > maxSearches {
		errs = append(errs, field.Invalid(fldPath.Child("searches"), config.Searches,
			"must not have more than 32 search paths"))
	}
	if len(strings.Join(config.Searches, " ")) > maxSearchChars {
		errs = append(errs, field.Invalid(fldPath.Child("searches"), config.Searches,
			"must not have more than 2048 characters (including spaces) in the search list"))
	}
	for i, search := range config.Searches {
		if field.Enough(errs) {
			break
		}
		if search == "." {
			continue
		}
		search = strings.TrimSuffix(search, ".")
		errs = append(errs, validate.Complaints(fldPath.Child("searches").Index(i), search,
			utilvalidation.IsDNS1123SubdomainWithUnderscore(search))...)
	}
	for i, option := range config.Options {
		if field.Enough(errs) {
			break
		}
		if option.Name == "" {
			errs = append(errs, field.Required(fldPath.Child("options").Index(i), "must not be empty"))
		}
	}
	return errs
}

// validateResourceClaimsOf checks the resource claims of the pod.
func validateResourceClaimsOf(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, c := range spec.ResourceClaims {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Index(i)
		switch {
		case c.Name == "":
			errs = append(errs, field.Required(idxPath.Child("name"), ""))
		case seen[c.Name]:
			errs = append(errs, field.Duplicate(idxPath.Child("name"), c.Name))
		default:
			errs = append(errs, validate.DnsLabel(idxPath.Child("name"), c.Name)...)
		}
		seen[c.Name] = true
		switch {
		case c.ResourceClaimName == nil && c.ResourceClaimTemplateName == nil:
			errs = append(errs,
				field.Invalid(idxPath, c, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
		case c.ResourceClaimName != nil && c.ResourceClaimTemplateName != nil:
			errs = append(errs, field.Invalid(idxPath, c, "at most one of `resourceClaimName` or "+
				"`resourceClaimTemplateName` may be specified"))
		}
		if c.ResourceClaimName != nil {
			errs = append(errs, validate.DnsSubdomain(idxPath.Child("resourceClaimName"), *c.ResourceClaimName)...)
		}
		if c.ResourceClaimTemplateName != nil {
			errs = append(errs, validate.DnsSubdomain(idxPath.Child("resourceClaimTemplateName"),
				*c.ResourceClaimTemplateName)...)
		}
	}
	return errs
}

// validatePodResources checks pod-level resources (KEP-2837): the requests must cover the sum of the containers'
// requests, and no container's limit may exceed the pod's.
func validatePodResources(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	errs := validateOverhead(spec.Overhead, path.Child("overhead"))
	r, path := spec.Resources, path.Child("resources")
	if r == nil {
		return errs
	}
	if r.Claims != nil {
		errs = append(errs, field.Forbidden(path.Child("claims"), "claims cannot be set for Resources at pod-level"))
	}
	errs = append(errs, validateResources(r, validatePodResourceName, path)...)
	sums := podresource.AggregateContainerRequests(&corev1.Pod{Spec: *spec}, podresource.PodResourcesOptions{})
	for _, name := range resourcelist.SortedNames(sums) {
		if field.Enough(errs) {
			break
		}
		sum, request := sums[name], r.Requests[name]
		if sum.Cmp(request) > 0 && podresource.IsSupportedPodLevelResource(name) {
			errs = append(errs, field.Invalid(path.Child("requests").Key(string(name)), request.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", sum.String())))
		}
	}
	for i := range spec.Containers {
		if field.Enough(errs) {
			break
		}
		limits := spec.Containers[i].Resources.Limits
		for _, name := range resourcelist.SortedNames(limits) {
			if field.Enough(errs) {
				break
			}
			own, all := limits[name], r.Limits[name]
			if _, ok := r.Limits[name]; ok && own.Cmp(all) > 0 {
				errs = append(errs, field.Invalid(path.Child("containers").Index(i).Key(string(name)).Child("limits"),
					own.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", all.String())))
			}
		}
	}
	return errs
}

func validateOverhead(overhead corev1.ResourceList, path *field.Path) field.ErrorList {
	if overhead == nil {
		return nil
	}
	return validateResources(&corev1.ResourceRequirements{Limits: overhead}, resourcelist.ValidateContainerName, path)
}
