package api

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateEphemeralUpdate lets ephemeral containers be added, never changed or taken away.
func validateEphemeralUpdate(p, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec", "ephemeralContainers")
	errs := validatePodSpec(&p.Spec, p.Name, field.NewPath("spec"))
	for i := range old.Spec.EphemeralContainers {
		was := &old.Spec.EphemeralContainers[i]
		at := slices.IndexFunc(p.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == was.Name })
		switch {
		case at < 0:
			errs = append(errs, field.Forbidden(path, "existing ephemeral containers \""+was.Name+"\" may not be removed\n"))
		case !equality.Semantic.DeepEqual(was, &p.Spec.EphemeralContainers[at]):
			errs = append(errs, field.Forbidden(path, "existing ephemeral containers \""+was.Name+"\" may not be changed\n"))
		}
	}
	return errs
}

// copyResources takes over what a resize may change. Containers are matched by name.
func copyResources(to, from *corev1.Pod) {
	from = from.DeepCopy()
	for _, lists := range [][2][]corev1.Container{
		{to.Spec.Containers, from.Spec.Containers},
		{to.Spec.InitContainers, from.Spec.InitContainers},
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
	to.Spec.Resources = from.Spec.Resources
}

// validateResize checks new resources of a running pod (KEP-1287): only cpu and memory
// may change, and not so that the pod's quality of service would be another.
func validateResize(p, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	errs := validatePodSpec(&p.Spec, p.Name, path)
	if qosClass(&p.Spec) != qosClass(&old.Spec) {
		errs = append(errs, field.Invalid(path, qosClass(&p.Spec), "Pod QOS Class may not change as a result of resizing"))
	}
	errs = append(errs, resized(p.Spec.Containers, old.Spec.Containers, path.Child("containers"))...)
	return append(errs, resized(p.Spec.InitContainers, old.Spec.InitContainers, path.Child("initContainers"))...)
}

func resized(containers, old []corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range containers {
		if i >= len(old) {
			break
		}
		at := path.Index(i)
		for _, lists := range []struct {
			name    string
			is, was corev1.ResourceList
		}{
			{"limits", containers[i].Resources.Limits, old[i].Resources.Limits},
			{"requests", containers[i].Resources.Requests, old[i].Resources.Requests},
		} {
			at := at.Child("resources", lists.name)
			if othersChanged(lists.is, lists.was) {
				errs = append(errs, field.Forbidden(at, "only cpu and memory resources are mutable"))
			}
			for name := range lists.was {
				if _, ok := lists.is[name]; !ok {
					errs = append(errs, field.Forbidden(at, "resource "+lists.name+" cannot be removed"))
				}
			}
		}
	}
	return errs
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
