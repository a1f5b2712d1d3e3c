package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	apifield "github.com/coxswain-dev/coxswain/api/field"
)

// alwaysPullImages makes the kubelet pull every image with the pod's own secrets.
type alwaysPullImages struct{}

func newAlwaysPullImages(*Env) (Plugin, error) { return alwaysPullImages{}, nil }

func (alwaysPullImages) Mutate(_ context.Context, a *Attributes) error {
	eachPullPolicy(a.Object.(*corev1.Pod), func(policy *corev1.PullPolicy, _ *field.Path) {
		*policy = corev1.PullAlways
	})
	return nil
}

func (alwaysPullImages) Validate(_ context.Context, a *Attributes) error {
	pod := a.Object.(*corev1.Pod)
	var errs field.ErrorList
	eachPullPolicy(pod, func(policy *corev1.PullPolicy, path *field.Path) {
		if *policy != corev1.PullAlways && !apifield.Enough(errs) {
			errs = append(errs, field.NotSupported(path, *policy, []corev1.PullPolicy{corev1.PullAlways}))
		}
	})
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(a.Kind.GroupKind(), pod.Name, errs)
}

func eachPullPolicy(pod *corev1.Pod, visit func(*corev1.PullPolicy, *field.Path)) {
	spec := field.NewPath("spec")
	for i := range pod.Spec.InitContainers {
		visit(&pod.Spec.InitContainers[i].ImagePullPolicy,
			spec.Child("initContainers").Index(i).Child("imagePullPolicy"))
	}
	for i := range pod.Spec.Containers {
		visit(&pod.Spec.Containers[i].ImagePullPolicy, spec.Child("containers").Index(i).Child("imagePullPolicy"))
	}
	for i := range pod.Spec.EphemeralContainers {
		visit(&pod.Spec.EphemeralContainers[i].ImagePullPolicy,
			spec.Child("ephemeralContainers").Index(i).Child("imagePullPolicy"))
	}
}
