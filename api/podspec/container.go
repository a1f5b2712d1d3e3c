package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// containerChecks is the state of the checks of a pod's containers, which run one after the other.
type containerChecks struct {
	volumes map[string]*corev1.VolumeSource
	claims  map[string]bool
	names   map[string]bool
	// pod is false for a template, which may leave out fields that a pod requires.
	pod bool
	// hostUsers is false if the pod has its own user namespace.
	hostUsers bool
	restart   corev1.RestartPolicy
	// grace is the pod's grace period, which limits a sleep.
	grace *int64
}

// container makes the checks that main, init and ephemeral containers share.
func (k *containerChecks) container(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	namePath := path.Child("name")
	if c.Name == "" {
		errs = append(errs, field.Required(namePath, ""))
	} else {
		errs = append(errs, validate.DnsLabel(namePath, c.Name)...)
	}
	errs = append(errs, validate.Required(path.Child("image"), c.Image)...)
	errs = append(errs, validate.RequiredOneOf(path.Child("terminationMessagePolicy"), c.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)...)
	errs = append(errs, validateContainerPorts(c.Ports, path.Child("ports"))...)
	errs = append(errs, validateEnv(c.Env, k.volumes, path.Child("env"))...)
	errs = append(errs, validateEnvFrom(c.EnvFrom, path.Child("envFrom"))...)
	errs = append(errs, k.mounts(c, path.Child("volumeMounts"))...)
	errs = append(errs, k.devices(c, path.Child("volumeDevices"))...)
	errs = append(errs, validate.RequiredOneOf(path.Child("imagePullPolicy"), c.ImagePullPolicy,
		corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)...)
	errs = append(errs, validateContainerResources(&c.Resources, k.claims, path.Child("resources"))...)
	errs = append(errs, validateResizePolicy(c.ResizePolicy, k.restart, path.Child("resizePolicy"))...)
	errs = append(errs, validateSecurityContext(c.SecurityContext, k.hostUsers, path.Child("securityContext"))...)
	if k.names[c.Name] {
		errs = append(errs, field.Duplicate(namePath, c.Name))
	}
	k.names[c.Name] = c.Name != ""
	if k.pod && strings.TrimSpace(c.Image) != c.Image {
		errs = append(errs, field.Invalid(path.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	}
	return errs
}

// lifecycle checks the probes and hooks of main containers and sidecars.
func (k *containerChecks) lifecycle(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.Lifecycle != nil {
		lifecyclePath := path.Child("lifecycle")
		if h := c.Lifecycle.PostStart; h != nil {
			errs = append(errs, validateHandler(handlerOfHook(h), k.grace, lifecyclePath.Child("postStart"))...)
		}
		if h := c.Lifecycle.PreStop; h != nil {
			errs = append(errs, validateHandler(handlerOfHook(h), k.grace, lifecyclePath.Child("preStop"))...)
		}
	}
	for _, p := range []struct {
		name  string
		probe *corev1.Probe
	}{{"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}, {"startupProbe", c.StartupProbe}} {
		if p.probe == nil {
			continue
		}
		errs = append(errs, validateProbe(p.probe, path.Child(p.name))...)
		switch {
		case p.name != "readinessProbe":
			if p.probe.SuccessThreshold != 1 {
				errs = append(errs, field.Invalid(path.Child(p.name, "successThreshold"), p.probe.SuccessThreshold,
					"must be 1"))
			}
		case p.probe.TerminationGracePeriodSeconds != nil:
			errs = append(errs, field.Invalid(path.Child(p.name, "terminationGracePeriodSeconds"),
				p.probe.TerminationGracePeriodSeconds, "must not be set for readinessProbes"))
		}
	}
	return errs
}

// noLifecycle rejects probes and hooks of an ordinary init container.
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

func validateContainerPorts(ports []corev1.ContainerPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i := range ports {
		if field.Enough(errs) {
			break
		}
		port, idxPath := &ports[i], path.Index(i)
		if port.Name != "" {
			if complaints := naming.IsValidPortName(port.Name); len(complaints) > 0 {
				errs = append(errs, validate.Complaints(idxPath.Child("name"), port.Name, complaints)...)
			} else if names[port.Name] {
				errs = append(errs, field.Duplicate(idxPath.Child("name"), port.Name))
			}
			names[port.Name] = true
		}
		if port.ContainerPort == 0 {
			errs = append(errs, field.Required(idxPath.Child("containerPort"), ""))
		} else {
			errs = append(errs, validate.PortNumber(idxPath.Child("containerPort"), port.ContainerPort)...)
		}
		if port.HostPort != 0 {
			errs = append(errs, validate.PortNumber(idxPath.Child("hostPort"), port.HostPort)...)
		}
		if port.HostIP != "" {
			errs = append(errs, validate.IP(idxPath.Child("hostIP"), port.HostIP)...)
		}
		errs = append(errs, validate.RequiredOneOf(idxPath.Child("protocol"), port.Protocol,
			corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)...)
	}
	return errs
}

// validateHostPorts rejects two containers with the same host port.
func validateHostPorts(containers []corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	taken := map[string]bool{}
	for i := range containers {
		if field.Enough(errs) {
			break
		}
		for j, port := range containers[i].Ports {
			if field.Enough(errs) {
				break
			}
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

// mounts requires mounts and devices to use each volume and each path at most once. As in Kubernetes, the paths of
// errors about a sub path or a mode lack the index.
func (k *containerChecks) mounts(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths := map[string]bool{}
	for i := range c.VolumeMounts {
		if field.Enough(errs) {
			break
		}
		m, idxPath := &c.VolumeMounts[i], path.Index(i)
		errs = append(errs, validate.Required(idxPath.Child("name"), m.Name)...)
		v := k.volumes[m.Name]
		if v == nil {
			errs = append(errs, field.NotFound(idxPath.Child("name"), m.Name))
		}
		errs = append(errs, validate.Required(idxPath.Child("mountPath"), m.MountPath)...)
		if paths[m.MountPath] {
			errs = append(errs, field.Invalid(idxPath.Child("mountPath"), m.MountPath, "must be unique"))
		}
		paths[m.MountPath] = true
		for _, d := range c.VolumeDevices {
			if field.Enough(errs) {
				break
			}
			if d.Name == m.Name {
				errs = append(errs,
					field.Invalid(idxPath.Child("name"), m.Name, "must not already exist in volumeDevices"))
			}
			if d.DevicePath == m.MountPath {
				errs = append(errs, field.Invalid(idxPath.Child("mountPath"), m.MountPath,
					"must not already exist as a path in volumeDevices"))
			}
		}
		errs = append(errs, validateSubPaths(m, path, idxPath)...)
		errs = append(errs, validateMountModes(m, isPrivileged(c), path)...)
	}
	return errs
}

func (k *containerChecks) devices(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names, paths := map[string]bool{}, map[string]bool{}
	for i, d := range c.VolumeDevices {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Index(i)
		errs = append(errs, validate.Required(idxPath.Child("name"), d.Name)...)
		if names[d.Name] {
			errs = append(errs, field.Invalid(idxPath.Child("name"), d.Name, "must be unique"))
		}
		if v := k.volumes[d.Name]; v == nil {
			errs = append(errs, field.NotFound(idxPath.Child("name"), d.Name))
		} else if v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
			errs = append(errs, field.Invalid(idxPath.Child("name"), d.Name, "can only use volume source type of "+
				"PersistentVolumeClaim or Ephemeral for block mode"))
		}
		errs = append(errs, validate.Required(idxPath.Child("devicePath"), d.DevicePath)...)
		if paths[d.DevicePath] {
			errs = append(errs, field.Invalid(idxPath.Child("devicePath"), d.DevicePath, "must be unique"))
		}
		if len(validate.NoBacksteps(idxPath, d.DevicePath)) > 0 {
			errs = append(errs,
				field.Invalid(idxPath.Child("devicePath"), d.DevicePath, "can not contain backsteps ('..')"))
		}
		names[d.Name], paths[d.DevicePath] = d.Name != "", true
		for _, m := range c.VolumeMounts {
			if field.Enough(errs) {
				break
			}
			if m.Name == d.Name {
				errs = append(errs,
					field.Invalid(idxPath.Child("name"), d.Name, "must not already exist in volumeMounts"))
			}
			if m.MountPath == d.DevicePath {
				errs = append(errs, field.Invalid(idxPath.Child("devicePath"), d.DevicePath,
					"must not already exist as a path in volumeMounts"))
			}
		}
	}
	return errs
}

func validateSubPaths(m *corev1.VolumeMount, path, fldPath *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.SubPath != "" {
		errs = append(errs, validate.RelativePath(path.Child("subPath"), m.SubPath)...)
	}
	if m.SubPathExpr != "" {
		if m.SubPath != "" {
			errs = append(errs, field.Invalid(fldPath.Child("subPathExpr"), m.SubPathExpr,
				"subPathExpr and subPath are mutually exclusive"))
		}
		errs = append(errs, validate.RelativePath(path.Child("subPathExpr"), m.SubPathExpr)...)
	}
	return errs
}

func validateMountModes(m *corev1.VolumeMount, privileged bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if mode := m.MountPropagation; mode != nil {
		fldPath := path.Child("mountPropagation")
		errs = append(errs, validate.OneOf(fldPath, *mode,
			corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer,
			corev1.MountPropagationNone)...)
		if *mode == corev1.MountPropagationBidirectional && !privileged {
			errs = append(errs,
				field.Forbidden(fldPath, "Bidirectional mount propagation is available only to privileged containers"))
		}
	}
	mode := m.RecursiveReadOnly
	if mode == nil {
		return errs
	}
	fldPath := path.Child("recursiveReadOnly")
	if *mode == corev1.RecursiveReadOnlyEnabled || *mode == corev1.RecursiveReadOnlyIfPossible {
		if !m.ReadOnly {
			errs = append(errs, field.Forbidden(fldPath, "may only be specified when readOnly is true"))
		}
		if m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone {
			errs = append(errs,
				field.Forbidden(fldPath, "may only be specified when mountPropagation is None or not specified"))
		}
		return errs
	}
	return append(errs, validate.OneOf(fldPath, *mode, corev1.RecursiveReadOnlyDisabled,
		corev1.RecursiveReadOnlyEnabled,
		corev1.RecursiveReadOnlyIfPossible)...)
}

func isPrivileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && ptr.Deref(c.SecurityContext.Privileged, false)
}

// IsSidecar reports whether an init container keeps running beside the main ones (KEP-753).
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
