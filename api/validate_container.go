package api

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// containerChecks is what the containers of one pod must agree on while they are checked
// one after the other.
type containerChecks struct {
	volumes     map[string]*corev1.VolumeSource
	claims      map[string]bool
	names       map[string]bool
	hostNetwork bool
	// grace is the pod's, which a sleep may not outlast.
	grace int64
}

// container checks what main and init containers have in common.
func (k *containerChecks) container(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	namePath := path.Child("name")
	switch {
	case c.Name == "":
		errs = append(errs, field.Required(namePath, ""))
	case k.names[c.Name]:
		errs = append(errs, field.Duplicate(namePath, c.Name))
	default:
		errs = append(errs, dnsLabel(namePath, c.Name)...)
	}
	k.names[c.Name] = true

	switch {
	case c.Image == "":
		errs = append(errs, field.Required(path.Child("image"), ""))
	case strings.TrimSpace(c.Image) != c.Image:
		errs = append(errs, field.Invalid(path.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	}
	errs = append(errs, requiredOneOf(path.Child("terminationMessagePolicy"), c.TerminationMessagePolicy,
		corev1.TerminationMessageFallbackToLogsOnError, corev1.TerminationMessageReadFile)...)
	errs = append(errs, requiredOneOf(path.Child("imagePullPolicy"), c.ImagePullPolicy,
		corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)...)

	errs = append(errs, validateContainerPorts(c.Ports, k.hostNetwork, path.Child("ports"))...)
	errs = append(errs, validateEnv(c.Env, k.volumes, path.Child("env"))...)
	errs = append(errs, validateEnvFrom(c.EnvFrom, path.Child("envFrom"))...)
	errs = append(errs, k.mounts(c, path)...)
	errs = append(errs, validateContainerResources(&c.Resources, k.claims, path.Child("resources"))...)
	errs = append(errs, validateResizePolicy(c.ResizePolicy, path.Child("resizePolicy"))...)
	return append(errs, validateSecurityContext(c.SecurityContext, path.Child("securityContext"))...)
}

// lifecycle checks probes and hooks, which main containers and sidecars have.
func (k *containerChecks) lifecycle(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.Lifecycle != nil {
		at := path.Child("lifecycle")
		if h := c.Lifecycle.PostStart; h != nil {
			errs = append(errs, validateHandler(handlerOfHook(h), k.grace, at.Child("postStart"))...)
		}
		if h := c.Lifecycle.PreStop; h != nil {
			errs = append(errs, validateHandler(handlerOfHook(h), k.grace, at.Child("preStop"))...)
		}
	}
	errs = append(errs, validateProbe(c.LivenessProbe, path.Child("livenessProbe"))...)
	errs = append(errs, validateProbe(c.ReadinessProbe, path.Child("readinessProbe"))...)
	errs = append(errs, validateProbe(c.StartupProbe, path.Child("startupProbe"))...)
	for name, p := range map[string]*corev1.Probe{"livenessProbe": c.LivenessProbe, "startupProbe": c.StartupProbe} {
		if p != nil && p.SuccessThreshold != 1 {
			errs = append(errs, field.Invalid(path.Child(name, "successThreshold"), p.SuccessThreshold, "must be 1"))
		}
	}
	if p := c.ReadinessProbe; p != nil && p.TerminationGracePeriodSeconds != nil {
		errs = append(errs, field.Invalid(path.Child("readinessProbe", "terminationGracePeriodSeconds"),
			*p.TerminationGracePeriodSeconds, "must not be set for readinessProbes"))
	}
	return errs
}

// noLifecycle refuses probes and hooks for an init container that must end.
func (k *containerChecks) noLifecycle(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	forbid := func(set bool, name, why string) {
		if set {
			errs = append(errs, field.Forbidden(path.Child(name), why))
		}
	}
	const why = "may not be set for init containers without restartPolicy=Always"
	forbid(c.Lifecycle != nil, "lifecycle", why)
	forbid(c.LivenessProbe != nil, "livenessProbe", why)
	forbid(c.ReadinessProbe != nil, "readinessProbe", why)
	forbid(c.StartupProbe != nil, "startupProbe", why)
	return errs
}

func validateContainerPorts(ports []corev1.ContainerPort, hostNetwork bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := make(map[string]bool, len(ports))
	for i := range ports {
		port, at := &ports[i], path.Index(i)
		if port.Name != "" {
			if complaints := utilvalidation.IsValidPortName(port.Name); len(complaints) > 0 {
				errs = append(errs, invalid(at.Child("name"), port.Name, complaints)...)
			} else if names[port.Name] {
				errs = append(errs, field.Duplicate(at.Child("name"), port.Name))
			}
			names[port.Name] = true
		}
		if port.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs, portNumber(at.Child("containerPort"), port.ContainerPort)...)
		}
		if port.HostPort != 0 {
			errs = append(errs, portNumber(at.Child("hostPort"), port.HostPort)...)
		}
		if hostNetwork && port.HostPort != port.ContainerPort {
			errs = append(errs, field.Invalid(at.Child("hostPort"), port.HostPort, "must match `containerPort` when `hostNetwork` is true"))
		}
		if port.HostIP != "" {
			errs = append(errs, validIP(at.Child("hostIP"), port.HostIP)...)
		}
		errs = append(errs, requiredOneOf(at.Child("protocol"), port.Protocol,
			corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)...)
	}
	return errs
}

// validateHostPorts refuses two containers that want the same port of the node.
func validateHostPorts(containers []corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	taken := map[string]bool{}
	for i := range containers {
		for j, port := range containers[i].Ports {
			if port.HostPort == 0 {
				continue
			}
			claim := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
			if taken[claim] {
				errs = append(errs, field.Duplicate(path.Index(i).Child("ports").Index(j).Child("hostPort"), claim))
			}
			taken[claim] = true
		}
	}
	return errs
}

func (k *containerChecks) mounts(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths := make(map[string]bool, len(c.VolumeMounts))
	for i := range c.VolumeMounts {
		m, at := &c.VolumeMounts[i], path.Child("volumeMounts").Index(i)
		if m.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else if k.volumes[m.Name] == nil {
			errs = append(errs, field.NotFound(at.Child("name"), m.Name))
		}
		if m.MountPath == "" {
			errs = append(errs, field.Required(at.Child("mountPath"), ""))
		} else if paths[m.MountPath] {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		paths[m.MountPath] = true
		errs = append(errs, validateSubPaths(m, at)...)
		errs = append(errs, validateMountModes(m, isPrivileged(c), at)...)
	}
	for i, d := range c.VolumeDevices {
		at := path.Child("volumeDevices").Index(i)
		if d.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else if v := k.volumes[d.Name]; v == nil {
			errs = append(errs, field.NotFound(at.Child("name"), d.Name))
		} else if v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		switch {
		case d.DevicePath == "":
			errs = append(errs, field.Required(at.Child("devicePath"), ""))
		case paths[d.DevicePath]:
			errs = append(errs, field.Invalid(at.Child("devicePath"), d.DevicePath, "must not already exist in volumeMounts"))
		default:
			errs = append(errs, noBacksteps(at.Child("devicePath"), d.DevicePath)...)
		}
	}
	return errs
}

func validateSubPaths(m *corev1.VolumeMount, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.SubPath != "" {
		errs = append(errs, relativePath(at.Child("subPath"), m.SubPath)...)
	}
	if m.SubPathExpr != "" {
		if m.SubPath != "" {
			errs = append(errs, field.Invalid(at.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
		}
		errs = append(errs, relativePath(at.Child("subPathExpr"), m.SubPathExpr)...)
	}
	return errs
}

func validateMountModes(m *corev1.VolumeMount, privileged bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if mode := m.MountPropagation; mode != nil {
		errs = append(errs, oneOf(at.Child("mountPropagation"), *mode,
			corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)...)
		if *mode == corev1.MountPropagationBidirectional && !privileged {
			errs = append(errs, field.Forbidden(at.Child("mountPropagation"), "Bidirectional mount propagation is available only to privileged containers"))
		}
	}
	if mode := m.RecursiveReadOnly; mode != nil {
		at := at.Child("recursiveReadOnly")
		errs = append(errs, oneOf(at, *mode, corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible)...)
		if *mode != corev1.RecursiveReadOnlyDisabled && !m.ReadOnly {
			errs = append(errs, field.Forbidden(at, "may only be specified when readOnly is true"))
		}
	}
	return errs
}

func isPrivileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && isTrue(c.SecurityContext.Privileged)
}

// relativePath checks a path below another: not absolute and never upwards.
func relativePath(at *field.Path, p string) field.ErrorList {
	var errs field.ErrorList
	if path.IsAbs(p) {
		errs = append(errs, field.Invalid(at, p, "must be a relative path"))
	}
	return append(errs, noBacksteps(at, p)...)
}

func noBacksteps(at *field.Path, p string) field.ErrorList {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return field.ErrorList{field.Invalid(at, p, "must not contain '..'")}
		}
	}
	return nil
}

func validateSecurityContext(sc *corev1.SecurityContext, path *field.Path) field.ErrorList {
	if sc == nil {
		return nil
	}
	var errs field.ErrorList
	errs = append(errs, validUserAndGroup(sc.RunAsUser, sc.RunAsGroup, path)...)
	if sc.ProcMount != nil {
		errs = append(errs, oneOf(path.Child("procMount"), *sc.ProcMount, corev1.DefaultProcMount, corev1.UnmaskedProcMount)...)
	}
	errs = append(errs, validateSeccomp(sc.SeccompProfile, path.Child("seccompProfile"))...)
	errs = append(errs, validateAppArmor(sc.AppArmorProfile, path.Child("appArmorProfile"))...)
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		if isTrue(sc.Privileged) {
			errs = append(errs, field.Invalid(path, sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if sc.Capabilities != nil {
			for _, c := range sc.Capabilities.Add {
				if c == "CAP_SYS_ADMIN" {
					errs = append(errs, field.Invalid(path, sc, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
				}
			}
		}
	}
	return errs
}

func validUserAndGroup(user, group *int64, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if user != nil {
		errs = append(errs, invalid(path.Child("runAsUser"), *user, utilvalidation.IsValidUserID(*user))...)
	}
	if group != nil {
		errs = append(errs, invalid(path.Child("runAsGroup"), *group, utilvalidation.IsValidGroupID(*group))...)
	}
	return errs
}

func validateSeccomp(p *corev1.SeccompProfile, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := requiredOneOf(path.Child("type"), p.Type,
		corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined)
	at := path.Child("localhostProfile")
	switch {
	case p.Type == corev1.SeccompProfileTypeLocalhost && p.LocalhostProfile == nil:
		errs = append(errs, field.Required(at, "must be set when seccomp type is Localhost"))
	case p.Type == corev1.SeccompProfileTypeLocalhost:
		errs = append(errs, relativePath(at, *p.LocalhostProfile)...)
	case p.LocalhostProfile != nil:
		errs = append(errs, field.Invalid(at, *p.LocalhostProfile, "can only be set when seccomp type is Localhost"))
	}
	return errs
}

func validateAppArmor(p *corev1.AppArmorProfile, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := requiredOneOf(path.Child("type"), p.Type,
		corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined)
	at := path.Child("localhostProfile")
	switch {
	case p.Type == corev1.AppArmorProfileTypeLocalhost && (p.LocalhostProfile == nil || strings.TrimSpace(*p.LocalhostProfile) == ""):
		errs = append(errs, field.Required(at, "must be set when AppArmor type is Localhost"))
	case p.Type != corev1.AppArmorProfileTypeLocalhost && p.LocalhostProfile != nil:
		errs = append(errs, field.Invalid(at, *p.LocalhostProfile, "can only be set when AppArmor type is Localhost"))
	}
	return errs
}
