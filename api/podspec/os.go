package podspec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// validateOS rejects fields that the pod's operating system does not support.
func validateOS(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	if spec.OS == nil {
		return nil
	}
	osPath := path.Child("os")
	switch spec.OS.Name {
	case "":
		return field.ErrorList{field.Required(osPath.Child("name"), "cannot be empty")}
	case corev1.Linux:
		return validateLinux(spec, path)
	case corev1.Windows:
		return validateWindows(spec, path)
	}
	return validate.OneOf(osPath, spec.OS.Name, corev1.Linux, corev1.Windows)
}

// eachContainer calls f for all containers, with the name of their list and their index.
func eachContainer(spec *corev1.PodSpec, visit func(c *corev1.Container, list string, i int)) {
	for i := range spec.InitContainers {
		visit(&spec.InitContainers[i], "initContainers", i)
	}
	for i := range spec.Containers {
		visit(&spec.Containers[i], "containers", i)
	}
	for i := range spec.EphemeralContainers {
		visit((*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon), "ephemeralContainers", i)
	}
}

func validateLinux(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	const why = "windows options cannot be set for a linux pod"
	if sc := spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		errs = append(errs, field.Forbidden(path.Child("securityContext", "windowsOptions"), why))
	}
	eachContainer(spec, func(c *corev1.Container, list string, i int) {
		if sc := c.SecurityContext; sc != nil && sc.WindowsOptions != nil {
			errs = append(errs, field.Forbidden(path.Child(list).Index(i).Child("securityContext", "windowsOptions"),
				why))
		}
	})
	return errs
}

// setField is a field's name, and whether the field has a value.
type setField struct {
	name string
	set  bool
}

func validateWindows(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	refuse := func(path *field.Path, fields []setField) {
		for _, f := range fields {
			if field.Enough(errs) {
				break
			}
			if f.set {
				errs = append(errs, field.Forbidden(path.Child(f.name), "cannot be set for a windows pod"))
			}
		}
	}
	if sc := spec.SecurityContext; sc != nil {
		securityContextPath := path.Child("securityContext")
		refuse(securityContextPath, []setField{{"appArmorProfile", sc.AppArmorProfile != nil},
			{"seLinuxOptions", sc.SELinuxOptions != nil}})
		refuse(path, []setField{{"hostUsers", spec.HostUsers != nil}, {"hostPID", spec.HostPID},
			{"hostIPC", spec.HostIPC}})
		refuse(securityContextPath, []setField{
			{"seccompProfile", sc.SeccompProfile != nil}, {"fsGroup", sc.FSGroup != nil},
			{"fsGroupChangePolicy", sc.FSGroupChangePolicy != nil}, {"sysctls", len(sc.Sysctls) > 0},
		})
		refuse(path, []setField{{"shareProcessNamespace", spec.ShareProcessNamespace != nil}})
		refuse(securityContextPath, []setField{
			{"runAsUser", sc.RunAsUser != nil}, {"runAsGroup", sc.RunAsGroup != nil},
			{"supplementalGroups", sc.SupplementalGroups != nil},
			{"supplementalGroupsPolicy", sc.SupplementalGroupsPolicy != nil},
			{"seLinuxChangePolicy", sc.SELinuxChangePolicy != nil},
		})
	}
	eachContainer(spec, func(c *corev1.Container, list string, i int) {
		if sc := c.SecurityContext; sc != nil {
			refuse(path.Child(list).Index(i).Child("securityContext"), []setField{
				{"appArmorProfile", sc.AppArmorProfile != nil}, {"seLinuxOptions", sc.SELinuxOptions != nil},
				{"seccompProfile", sc.SeccompProfile != nil}, {"capabilities", sc.Capabilities != nil},
				{"readOnlyRootFilesystem", sc.ReadOnlyRootFilesystem != nil}, {"privileged", sc.Privileged != nil},
				{"allowPrivilegeEscalation", sc.AllowPrivilegeEscalation != nil}, {"procMount", sc.ProcMount != nil},
				{"runAsUser", sc.RunAsUser != nil}, {"runAsGroup", sc.RunAsGroup != nil},
			})
		}
	})
	return errs
}

// validateHostProcess requires all containers of a Windows pod to be host processes, or none.
func validateHostProcess(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	hostProcess := func(o *corev1.WindowsSecurityContextOptions) *bool {
		if o == nil {
			return nil
		}
		return o.HostProcess
	}
	var ofPod *bool
	if sc := spec.SecurityContext; sc != nil {
		ofPod = hostProcess(sc.WindowsOptions)
	}
	if ofPod == nil && !hasWindowsOptions(spec) {
		return nil
	}
	var errs field.ErrorList
	containers, onHost := 0, 0
	eachContainer(spec, func(c *corev1.Container, list string, i int) {
		containers++
		var own *bool
		if sc := c.SecurityContext; sc != nil {
			own = hostProcess(sc.WindowsOptions)
		}
		if ofPod != nil && own != nil && *ofPod != *own {
			errs = append(errs,
				field.Invalid(path.Child(list).Index(i).Child("securityContext", "windowsOptions", "hostProcess"), *own,
					fmt.Sprintf("pod hostProcess value must be identical if both are specified, was %v", *ofPod)))
		}
		if ptr.Deref(own, false) || (own == nil && ptr.Deref(ofPod, false)) {
			onHost++
		}
	})
	if onHost == 0 {
		return errs
	}
	if onHost != containers {
		errs = append(errs, field.Invalid(path, "", "If pod contains any hostProcess containers then all "+
			"containers must be HostProcess containers"))
	}
	if !spec.HostNetwork {
		errs = append(errs, field.Invalid(path.Child("hostNetwork"), spec.HostNetwork,
			"hostNetwork must be true if pod contains any hostProcess containers"))
	}
	return errs
}

func hasWindowsOptions(spec *corev1.PodSpec) bool {
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && sc.WindowsOptions != nil {
				return true
			}
		}
	}
	return slices.ContainsFunc(spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool {
		return c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil
	})
}

// The forms of Windows' domain and user names.
var (
	controlCharacters = regexp.MustCompile(`[[:cntrl:]]+`)
	netBIOSName       = regexp.MustCompile(`^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`)
	windowsDomain     = regexp.MustCompile(
		`^[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$`)
	userNameRefuses = regexp.MustCompile(`["/\\:;|=,\+\*\?<>@\[\]]`)
	dotsAndSpaces   = regexp.MustCompile(`^[\. ]+$`)
)

func validateWindowsOptions(o *corev1.WindowsSecurityContextOptions, path *field.Path) field.ErrorList {
	const maxSpecKiB = 64
	if o == nil {
		return nil
	}
	var errs field.ErrorList
	if name := o.GMSACredentialSpecName; name != nil {
		errs = append(errs, validate.Complaints(path.Child("gmsaCredentialSpecName"), name,
			naming.IsDNS1123Subdomain(*name))...)
	}
	if spec := o.GMSACredentialSpec; spec != nil {
		fldPath := path.Child("gmsaCredentialSpec")
		switch {
		case *spec == "":
			errs = append(errs, field.Invalid(fldPath, spec, "gmsaCredentialSpec cannot be an empty string"))
		case len(*spec) > maxSpecKiB<<10:
			errs = append(errs,
				field.Invalid(fldPath, spec, fmt.Sprintf("gmsaCredentialSpec size must be under %d KiB", maxSpecKiB)))
		}
	}
	if o.RunAsUserName != nil {
		errs = append(errs, validate.Complaints(path.Child("runAsUserName"), o.RunAsUserName,
			windowsUserComplaints(*o.RunAsUserName))...)
	}
	return errs
}

// windowsUserComplaints returns the reasons why a name such as DOMAIN\user is invalid.
func windowsUserComplaints(name string) []string {
	const maxDomain, maxUser = 256, 104
	switch {
	case name == "":
		return []string{"runAsUserName cannot be an empty string"}
	case controlCharacters.MatchString(name):
		return []string{"runAsUserName cannot contain control characters"}
	case strings.Count(name, `\`) > 1:
		return []string{"runAsUserName cannot contain more than one backslash"}
	}
	var list []string
	complain := func(bad bool, why string) {
		if bad {
			list = append(list, why)
		}
	}
	domain, user, hasDomain := strings.Cut(name, `\`)
	if !hasDomain {
		domain, user = "", name
	}
	complain(len(domain) >= maxDomain, fmt.Sprintf("runAsUserName's Domain length must be under %d characters",
		maxDomain))
	complain(hasDomain && !netBIOSName.MatchString(domain) && !windowsDomain.MatchString(domain),
		"runAsUserName's Domain doesn't match the NetBios nor the DNS format")
	complain(user == "", "runAsUserName's User cannot be empty")
	complain(len(user) > maxUser, fmt.Sprintf("runAsUserName's User length must not be longer than %d characters",
		maxUser))
	complain(dotsAndSpaces.MatchString(user), `runAsUserName's User cannot contain only periods or spaces`)
	complain(userNameRefuses.MatchString(user),
		`runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]`)
	return list
}
