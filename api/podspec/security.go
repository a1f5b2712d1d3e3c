package podspec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

// validateSecurityContext checks a container's security context. hostUsers is true if the pod has no user namespace of
// its own.
func validateSecurityContext(sc *corev1.SecurityContext, hostUsers bool, path *field.Path) field.ErrorList {
	if sc == nil {
		return nil
	}
	errs := validUserAndGroup(sc.RunAsUser, sc.RunAsGroup, path)
	if sc.ProcMount != nil {
		procMountPath := path.Child("procMount")
		errs = append(errs,
			validate.OneOf(procMountPath, *sc.ProcMount, corev1.DefaultProcMount, corev1.UnmaskedProcMount)...)
		if hostUsers && *sc.ProcMount == corev1.UnmaskedProcMount {
			errs = append(errs,
				field.Invalid(procMountPath, sc.ProcMount, "`hostUsers` must be false to use `Unmasked`"))
		}
	}
	errs = append(errs, validateSeccomp(sc.SeccompProfile, path.Child("seccompProfile"))...)
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		if ptr.Deref(sc.Privileged, false) {
			errs = append(errs,
				field.Invalid(path, sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, "CAP_SYS_ADMIN") {
			errs = append(errs, field.Invalid(path, sc, "cannot set `allowPrivilegeEscalation` to false and "+
				"`capabilities.Add` CAP_SYS_ADMIN"))
		}
	}
	errs = append(errs, validateWindowsOptions(sc.WindowsOptions, path.Child("windowsOptions"))...)
	return append(errs, validateAppArmor(sc.AppArmorProfile, path.Child("appArmorProfile"))...)
}

func validUserAndGroup(user, group *int64, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if user != nil {
		errs = append(errs, validate.Complaints(path.Child("runAsUser"), *user, utilvalidation.IsValidUserID(*user))...)
	}
	if group != nil {
		errs = append(errs, validate.Complaints(path.Child("runAsGroup"), *group,
			utilvalidation.IsValidGroupID(*group))...)
	}
	return errs
}

func validateSeccomp(p *corev1.SeccompProfile, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	var errs field.ErrorList
	if p.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), "type is required when seccompProfile is set"))
	} else {
		errs = append(errs, validate.OneOf(path.Child("type"), p.Type,
			corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault,
			corev1.SeccompProfileTypeUnconfined)...)
	}
	localhostProfilePath := path.Child("localhostProfile")
	switch {
	case p.Type == corev1.SeccompProfileTypeLocalhost && p.LocalhostProfile == nil:
		errs = append(errs, field.Required(localhostProfilePath, "must be set when seccomp type is Localhost"))
	case p.Type == corev1.SeccompProfileTypeLocalhost:
		errs = append(errs, validate.RelativePath(localhostProfilePath, *p.LocalhostProfile)...)
	case p.LocalhostProfile != nil:
		errs = append(errs, field.Invalid(localhostProfilePath, p, "can only be set when seccomp type is Localhost"))
	}
	return errs
}

func validateAppArmor(p *corev1.AppArmorProfile, path *field.Path) field.ErrorList {
	const pathMax = 4095
	if p == nil {
		return nil
	}
	localhostProfilePath := path.Child("localhostProfile")
	switch p.Type {
	case "":
		return field.ErrorList{field.Required(path.Child("type"), "type is required when appArmorProfile is set")}
	case corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			return field.ErrorList{field.Required(localhostProfilePath, "must be set when AppArmor type is Localhost")}
		}
		var errs field.ErrorList
		if strings.TrimSpace(*p.LocalhostProfile) != *p.LocalhostProfile {
			errs = append(errs,
				field.Invalid(localhostProfilePath, *p.LocalhostProfile, "must not be padded with whitespace"))
		}
		if len(*p.LocalhostProfile) > pathMax {
			errs = append(errs, field.TooLong(localhostProfilePath, "" /*unused*/, pathMax))
		}
		return errs
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if p.LocalhostProfile != nil {
			return field.ErrorList{field.Invalid(localhostProfilePath, p.LocalhostProfile,
				"can only be set when AppArmor type is Localhost")}
		}
		return nil
	}
	return validate.OneOf(path.Child("type"), p.Type,
		corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault,
		corev1.AppArmorProfileTypeUnconfined)
}

// sysctlName allows slashes as well as dots between the parts (sysctl.d(5)).
var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

func validatePodSecurity(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	sc := spec.SecurityContext
	if sc == nil {
		return nil
	}
	var errs field.ErrorList
	if sc.FSGroup != nil {
		errs = append(errs, validate.Complaints(path.Child("fsGroup"), *sc.FSGroup,
			utilvalidation.IsValidGroupID(*sc.FSGroup))...)
	}
	errs = append(errs, validUserAndGroup(sc.RunAsUser, sc.RunAsGroup, path)...)
	for i, group := range sc.SupplementalGroups {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.Complaints(path.Child("supplementalGroups").Index(i), group,
			utilvalidation.IsValidGroupID(group))...)
	}
	errs = append(errs, validateSysctls(spec, path.Child("sysctls"))...)
	if p := sc.FSGroupChangePolicy; p != nil {
		errs = append(errs, validate.OneOf(path.Child("fsGroupChangePolicy"), *p, corev1.FSGroupChangeAlways,
			corev1.FSGroupChangeOnRootMismatch)...)
	}
	errs = append(errs, validateSeccomp(sc.SeccompProfile, path.Child("seccompProfile"))...)
	errs = append(errs, validateWindowsOptions(sc.WindowsOptions, path.Child("windowsOptions"))...)
	errs = append(errs, validateAppArmor(sc.AppArmorProfile, path.Child("appArmorProfile"))...)
	if p := sc.SupplementalGroupsPolicy; p != nil {
		errs = append(errs, validate.OneOf(path.Child("supplementalGroupsPolicy"), *p,
			corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)...)
	}
	if p := sc.SELinuxChangePolicy; p != nil {
		errs = append(errs, validate.OneOf(path.Child("seLinuxChangePolicy"), *p, corev1.SELinuxChangePolicyMountOption,
			corev1.SELinuxChangePolicyRecursive)...)
	}
	return errs
}

func validateSysctls(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	const maxName = 253
	var errs field.ErrorList
	names := map[string]bool{}
	for i, s := range spec.SecurityContext.Sysctls {
		if field.Enough(errs) {
			break
		}
		fldPath := path.Index(i).Child("name")
		switch {
		case s.Name == "":
			errs = append(errs, field.Required(fldPath, ""))
		case len(s.Name) > maxName || !sysctlName.MatchString(s.Name):
			errs = append(errs, field.Invalid(fldPath, s.Name, fmt.Sprintf("must have at most %d characters and match "+
				"regex %s", maxName, sysctlName)))
		case names[s.Name]:
			errs = append(errs, field.Duplicate(fldPath, s.Name))
		}
		names[s.Name] = true
		switch namespace, _, _ := sysctl.GetNamespace(s.Name); {
		case spec.HostNetwork && namespace == sysctl.NetNamespace:
			errs = append(errs, field.Invalid(fldPath, s.Name, "may not be specified when 'hostNetwork' is true"))
		case spec.HostIPC && namespace == sysctl.IPCNamespace:
			errs = append(errs, field.Invalid(fldPath, s.Name, "may not be specified when 'hostIPC' is true"))
		}
	}
	return errs
}

// validateHostUsers rejects the node's other namespaces for a pod with its own user namespace.
func validateHostUsers(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	if spec.HostUsers == nil || *spec.HostUsers {
		return nil
	}
	var errs field.ErrorList
	for _, host := range []struct {
		name string
		set  bool
	}{{"hostNetwork", spec.HostNetwork}, {"HostPID", spec.HostPID}, {"HostIPC", spec.HostIPC}} {
		if host.set {
			errs = append(errs, field.Forbidden(path.Child(host.name), "when `pod.Spec.HostUsers` is false"))
		}
	}
	return errs
}
