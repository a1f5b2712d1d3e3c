package core

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

// validatePodStatus checks a status from a kubelet or the scheduler.
func validatePodStatus(p, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("status")
	errs := validateAnnotationUpdate(p, old)
	errs = append(errs, validatePodConditions(p.Status.Conditions, field.NewPath("metadata", "conditions"))...)
	if p.Spec.NodeName != old.Spec.NodeName {
		errs = append(errs, field.Forbidden(path.Child("nodeName"), "may not be changed directly"))
	}
	if name := p.Status.NominatedNodeName; name != "" && name != old.Status.NominatedNodeName {
		errs = append(errs, validate.DnsSubdomain(path.Child("nominatedNodeName"), name)...)
	}
	if old.Status.QOSClass != "" && p.Status.QOSClass != old.Status.QOSClass {
		errs = append(errs, field.Invalid(path.Child("qosClass"), p.Status.QOSClass, validate.Immutable))
	}
	errs = append(errs, validateStateTransitions(p, old, path)...)
	errs = append(errs, validateClaimStatuses(p, path.Child("resourceClaimStatuses"))...)
	ips := make([]string, len(p.Status.PodIPs))
	for i, ip := range p.Status.PodIPs {
		ips[i] = ip.IP
	}
	errs = append(errs, onePerFamily(ips, p.Status.PodIPs, path.Child("podIPs"))...)
	ips = make([]string, len(p.Status.HostIPs))
	for i, ip := range p.Status.HostIPs {
		ips[i] = ip.IP
	}
	if len(ips) > 0 && p.Status.HostIP != ips[0] {
		errs = append(errs, field.Invalid(path.Child("hostIPs").Index(0).Child("ip"), ips[0],
			"must be equal to `hostIP`"))
	}
	errs = append(errs, onePerFamily(ips, p.Status.HostIPs, path.Child("hostIPs"))...)
	return append(errs, validateContainerUsers(p, path)...)
}

// validatePodConditions checks the types of conditions other than Kubernetes' own. As in Kubernetes, the path begins
// with metadata.
func validatePodConditions(conditions []corev1.PodCondition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range conditions {
		if field.Enough(errs) {
			break
		}
		switch c.Type {
		case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized:
		default:
			errs = append(errs, validate.QualifiedName(path.Index(i).Child("Type"), string(c.Type))...)
		}
	}
	return errs
}

// onePerFamily requires valid addresses, and at most one per IP family. value is the list in the form of the object,
// for errors.
func onePerFamily(ips []string, value any, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	v6 := 0
	for i, ip := range ips {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.IP(path.Index(i), ip)...)
		if strings.Contains(ip, ":") {
			v6++
		}
	}
	if len(ips) > 2 || (len(ips) == 2 && v6 != 1) {
		errs = append(errs, field.Invalid(path, value, "may specify no more than one IP for each IP family"))
	}
	var before validate.Seen
	for i, ip := range ips {
		if field.Enough(errs) {
			break
		}
		if validate.Repeated(&before, ips[:i], ip) {
			errs = append(errs, field.Duplicate(path.Index(i), ip))
		}
	}
	return errs
}

// validateStateTransitions rejects the restart of a container that has ended permanently. Ephemeral containers are
// never restarted.
func validateStateTransitions(p, old *corev1.Pod, path *field.Path) field.ErrorList {
	errs := ended(p.Status.EphemeralContainerStatuses, old.Status.EphemeralContainerStatuses,
		path.Child("ephemeralContainerStatuses"),
		func(string) corev1.RestartPolicy { return corev1.RestartPolicyNever })
	if old.Spec.RestartPolicy == corev1.RestartPolicyAlways || hasRestartRules(&old.Spec) {
		return errs
	}
	ofPod := func(string) corev1.RestartPolicy { return old.Spec.RestartPolicy }
	type named struct {
		name    string
		sidecar bool
	}
	inits := validate.Members(old.Spec.InitContainers, func(c *corev1.Container) named {
		return named{c.Name, podspec.IsSidecar(c)}
	})
	ofInit := func(name string) corev1.RestartPolicy {
		if inits(named{name, true}) {
			return corev1.RestartPolicyAlways
		}
		return old.Spec.RestartPolicy
	}
	errs = append(errs, ended(p.Status.ContainerStatuses, old.Status.ContainerStatuses, path.Child("containerStatuses"),
		ofPod)...)
	return append(errs, ended(p.Status.InitContainerStatuses, old.Status.InitContainerStatuses,
		path.Child("initContainerStatuses"), ofInit)...)
}

func ended(statuses, old []corev1.ContainerStatus, path *field.Path,
	policy func(name string) corev1.RestartPolicy) field.ErrorList {
	var errs field.ErrorList
	for i := range old {
		if field.Enough(errs) {
			break
		}
		was := &old[i]
		t := was.State.Terminated
		if t == nil {
			continue
		}
		restarts := policy(was.Name)
		if restarts == corev1.RestartPolicyAlways || (t.ExitCode != 0 && restarts == corev1.RestartPolicyOnFailure) {
			continue
		}
		for j := range statuses {
			if field.Enough(errs) {
				break
			}
			if statuses[j].Name == was.Name && statuses[j].State.Terminated == nil {
				errs = append(errs, field.Forbidden(path.Index(i).Child("state"),
					"may not be transitioned to non-terminated state"))
			}
		}
	}
	return errs
}

func hasRestartRules(spec *corev1.PodSpec) bool {
	for i := range spec.Containers {
		if spec.Containers[i].RestartPolicy != nil || len(spec.Containers[i].RestartPolicyRules) > 0 {
			return true
		}
	}
	return false
}

func validateClaimStatuses(p *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	claims := validate.Members(p.Spec.ResourceClaims, func(c *corev1.PodResourceClaim) string { return c.Name })
	for i, s := range p.Status.ResourceClaimStatuses {
		if field.Enough(errs) {
			break
		}
		namePath := path.Index(i).Child("name")
		if !claims(s.Name) {
			errs = append(errs,
				field.Invalid(namePath, s.Name, "must match the name of an entry in `spec.resourceClaims`"))
		}
		if names[s.Name] {
			errs = append(errs, field.Duplicate(namePath, s.Name))
		}
		names[s.Name] = true
		if s.ResourceClaimName != nil {
			errs = append(errs, validate.DnsSubdomain(namePath, *s.ResourceClaimName)...)
		}
	}
	return errs
}

// validateContainerUsers checks the user and groups of each container.
func validateContainerUsers(p *corev1.Pod, path *field.Path) field.ErrorList {
	windows := p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows
	var errs field.ErrorList
	users := func(statuses []corev1.ContainerStatus, path *field.Path) {
		for i := range statuses {
			if field.Enough(errs) {
				break
			}
			if statuses[i].User == nil || statuses[i].User.Linux == nil {
				continue
			}
			user, linuxPath := statuses[i].User.Linux, path.Index(i).Child("linux")
			if windows {
				errs = append(errs, field.Forbidden(linuxPath, "cannot be set for a windows pod"))
				continue
			}
			errs = append(errs, validate.Complaints(linuxPath.Child("uid"), user.UID,
				utilvalidation.IsValidUserID(user.UID))...)
			errs = append(errs, validate.Complaints(linuxPath.Child("gid"), user.GID,
				utilvalidation.IsValidGroupID(user.GID))...)
			for g, group := range user.SupplementalGroups {
				if field.Enough(errs) {
					break
				}
				errs = append(errs, validate.Complaints(linuxPath.Child("supplementalGroups").Index(g), group,
					utilvalidation.IsValidGroupID(group))...)
			}
		}
	}
	users(p.Status.ContainerStatuses, path.Child("containerStatuses"))
	users(p.Status.InitContainerStatuses, path.Child("initContainerStatuses"))
	users(p.Status.EphemeralContainerStatuses, path.Child("ephemeralContainerStatuses"))
	return errs
}
