package apiserver

import (
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
)

// createSubresource answers a POST below an object.
func (s *Server) createSubresource(w http.ResponseWriter, r *request) error {
	if err := checkWriteOptions(r, "CreateOptions"); err != nil {
		return err
	}
	switch r.subresource {
	case "binding":
		return s.bind(w, r)
	case "eviction":
		return s.evict(w, r)
	case "token":
		return s.requestToken(w, r)
	}
	return apierrors.NewMethodNotSupported(r.res.GroupResource(), r.verb)
}

// bind answers a POST of a Binding: it puts a pod on a node, once.
func (s *Server) bind(w http.ResponseWriter, r *request) error {
	binding := &corev1.Binding{}
	if err := s.readInto(w, r, corev1.SchemeGroupVersion.WithKind("Binding"), binding); err != nil {
		return err
	}
	if binding.Name != "" && binding.Name != r.name {
		return apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if binding.Namespace != "" && binding.Namespace != r.namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	if err := checkBinding(binding); err != nil {
		return err
	}
	if err := s.admitChild(r, binding); err != nil {
		return err
	}
	return s.bindTo(w, r, binding)
}

// bindNamed answers a POST of a Binding to the resource of that name: it names the pod itself.
func (s *Server) bindNamed(w http.ResponseWriter, r *request, binding *corev1.Binding) error {
	if binding.Name == "" {
		return apierrors.NewBadRequest("name is required in the Binding object")
	}
	if err := checkBinding(binding); err != nil {
		return err
	}
	if err := s.admitChild(r, binding); err != nil {
		return err
	}
	r.name = binding.Name
	r.res = s.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("Pod"))
	r.objects = s.collection(r.res)
	return s.bindTo(w, r, binding)
}

// bindTo puts the request's pod where a sound binding says.
func (s *Server) bindTo(w http.ResponseWriter, r *request, binding *corev1.Binding) error {
	_, err := s.modify(r.Context(), r, func(old api.Object) (api.Object, error) {
		pod := old.DeepCopyObject().(*corev1.Pod)
		if err := s.assign(r, pod, binding); err != nil {
			return nil, err
		}
		return pod, nil
	})
	if err != nil {
		return err
	}
	return s.writeStatus(w, r, metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
}

func checkBinding(b *corev1.Binding) error {
	target := field.NewPath("target")
	var errs field.ErrorList
	if b.Target.Kind != "" && b.Target.Kind != "Node" {
		errs = append(errs, field.NotSupported(target.Child("kind"), b.Target.Kind, []string{"Node", "<empty>"}))
	}
	if b.Target.Name == "" {
		errs = append(errs, field.Required(target.Child("name"), ""))
	}
	errs = api.ValidateReferences(errs, b, nil)
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Binding").GroupKind(), b.Name, errs)
}

// assign sets the pod's node and the PodScheduled condition.
func (s *Server) assign(r *request, pod *corev1.Pod, b *corev1.Binding) error {
	conflict := func(format string, args ...any) error {
		return apierrors.NewConflict(r.res.GroupResource(), "binding", fmt.Errorf(format, args...))
	}
	switch {
	case b.UID != "" && b.UID != pod.UID:
		return conflict("Precondition failed: UID in precondition: %v, UID in object meta: %v", b.UID, pod.UID)
	case pod.DeletionTimestamp != nil:
		return conflict("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return conflict("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		return conflict("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName = b.Target.Name
	for k, v := range b.Annotations {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, k, v)
	}
	for k, v := range b.Labels {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, k, v)
	}
	now := metav1.NewTime(s.Clock.Now()).Rfc3339Copy()
	scheduled := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			if c.Status == corev1.ConditionTrue {
				scheduled.LastTransitionTime = c.LastTransitionTime
			}
			*c = scheduled
			return nil
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, scheduled)
	return nil
}
