package core

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/kubectl/pkg/util/qos"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

// validateEphemeralUpdate allows ephemeral containers to be added, but not to be changed or removed.
func validateEphemeralUpdate(p, old *corev1.Pod) field.ErrorList {
	if _, mirror := old.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")}
	}
	path := field.NewPath("spec", "ephemeralContainers")
	errs := validatePod(p)
	for i := range old.Spec.EphemeralContainers {
		if field.Enough(errs) {
			break
		}
		was := &old.Spec.EphemeralContainers[i]
		index := slices.IndexFunc(p.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool {
			return c.Name == was.Name
		})
		switch {
		case index < 0:
			errs = append(errs, field.Forbidden(path, "existing ephemeral containers \""+was.Name+
				"\" may not be removed\n"))
		case !equality.Semantic.DeepEqual(was, &p.Spec.EphemeralContainers[index]):
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("existing ephemeral containers %q may not be "+
				"changed\n%v", was.Name, validate.Diff(was, &p.Spec.EphemeralContainers[index]))))
		}
	}
	return errs
}

// copyResources copies the fields that a resize may change. Containers are matched by name.
func copyResources(dst, src *corev1.Pod) {
	src = src.DeepCopy()
	for _, lists := range [][2][]corev1.Container{
		{dst.Spec.Containers, src.Spec.Containers},
		{dst.Spec.InitContainers, src.Spec.InitContainers},
	} {
		for i := range lists[0] {
			for j := range lists[1] {
				if lists[0][i].Name == lists[1][j].Name {
					lists[0][i].Resources = lists[1][j].Resources
					lists[0][i].ResizePolicy = lists[1][j].ResizePolicy
				}
			}
		}
	}
	dst.Spec.Resources = src.Spec.Resources
}

// validateResize checks a resize of a running pod (KEP-1287): only CPU and memory may change, and the
// quality of service class must stay the same.
func validateResize(p, old *corev1.Pod) field.ErrorList {
	refuse := func(why string) field.ErrorList { return field.ErrorList{field.Forbidden(field.NewPath(""), why)} }
	if _, mirror := old.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return refuse("static pods cannot be resized")
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		return refuse("windows pods cannot be resized")
	}
	path := field.NewPath("spec")
	errs := validatePod(p)
	if qos.ComputePodQOS(p) != qos.ComputePodQOS(old) {
		errs = append(errs,
			field.Invalid(path, p.Status.QOSClass, "Pod QOS Class may not change as a result of resizing"))
	}
	for i := range min(len(p.Spec.InitContainers), len(old.Spec.InitContainers)) {
		if field.Enough(errs) {
			break
		}
		c, was := &p.Spec.InitContainers[i], &old.Spec.InitContainers[i]
		if podspec.IsSidecar(was) {
			errs = append(errs, resized(c, was, "only cpu and memory resources for sidecar containers are mutable",
				path, path.Child("initContainers").Index(i))...)
		} else if !equality.Semantic.DeepEqual(c.Resources, was.Resources) {
			errs = append(errs, field.Forbidden(path, "resources for non-sidecar init containers are immutable"))
		}
	}
	for i := range min(len(p.Spec.Containers), len(old.Spec.Containers)) {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, resized(&p.Spec.Containers[i], &old.Spec.Containers[i],
			"only cpu and memory resources are mutable", path, path.Child("containers").Index(i))...)
	}
	return errs
}

// resized checks the resources of one container. only is the message about the spec if a resource other than CPU and
// memory has changed.
func resized(c, old *corev1.Container, only string, spec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	is, was := &c.Resources, &old.Resources
	if removed(is.Requests, was.Requests) {
		errs = append(errs, field.Forbidden(path.Child("resources", "requests"), "resource requests cannot be removed"))
	}
	if removed(is.Limits, was.Limits) {
		errs = append(errs, field.Forbidden(path.Child("resources", "limits"), "resource limits cannot be removed"))
	}
	if othersChanged(is.Limits, was.Limits) || othersChanged(is.Requests, was.Requests) {
		errs = append(errs, field.Forbidden(spec, only))
	}
	return errs
}

func removed(is, was corev1.ResourceList) bool {
	for name := range was {
		if _, ok := is[name]; !ok {
			return true
		}
	}
	return false
}

func othersChanged(is, was corev1.ResourceList) bool {
	for _, lists := range [][2]corev1.ResourceList{{is, was}, {was, is}} {
		for name, q := range lists[0] {
			if name != corev1.ResourceCPU && name != corev1.ResourceMemory && !q.Equal(lists[1][name]) {
				return true
			}
		}
	}
	return false
}
