package apiserver

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	apifield "github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/apiserver/pods"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
)

// createSubresource answers a POST to a subresource of an object.
func (s *Server) createSubresource(w http.ResponseWriter, r *request) error {
	if err := query.CheckWrite(r.query, "CreateOptions"); err != nil {
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

// bind answers a POST of a Binding, which assigns a pod to a node. A pod is assigned once.
func (s *Server) bind(w http.ResponseWriter, r *request) error {
	binding := &corev1.Binding{}
	if _, err := s.readInto(w, r, corev1.SchemeGroupVersion.WithKind("Binding"), binding); err != nil {
		return err
	}
	if binding.Name != "" && binding.Name != r.name {
		return apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if binding.Namespace != "" && binding.Namespace != r.namespace {
		return apierrors.NewBadRequest(
			"the namespace of the provided object does not match the namespace sent on the request")
	}
	if err := checkBinding(r.res, binding); err != nil {
		return err
	}
	warnings, err := s.admitBinding(r, binding)
	if err != nil {
		return err
	}
	return s.bindTo(w, r, binding, warnings)
}

// bindNamed answers a POST of a Binding to the resource bindings: its name is the pod's.
func (s *Server) bindNamed(w http.ResponseWriter, r *request, binding *corev1.Binding) error {
	if binding.Name == "" {
		return apierrors.NewBadRequest("name is required in the Binding object")
	}
	if err := checkBinding(r.res, binding); err != nil {
		return err
	}
	warnings, err := s.admitBinding(r, binding)
	if err != nil {
		return err
	}
	res := s.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("Pod"))
	return s.bindTo(w, r.update(res, s.collection(res), binding.Name), binding, warnings)
}

// bindTo assigns the request's pod to the node that a valid binding names.
func (s *Server) bindTo(w http.ResponseWriter, r *request, binding *corev1.Binding, warnings []string) error {
	wr := beginWrite(r, warnings)
	_, err := s.modify(r.Context(), wr, func(old api.Object) (api.Object, error) {
		pod := old.DeepCopyObject().(*corev1.Pod)
		return pod, pods.Bind(pod, binding, s.Clock.Now())
	})
	if err != nil {
		return wr.on(err)
	}
	responsewriter.AddWarnings(w.Header(), wr.warnings)
	return s.writeStatus(w, r.Request, metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
}

// admitBinding calls the plugins for a Binding, and checks it again, since a webhook may have changed it.
func (s *Server) admitBinding(r *request, binding *corev1.Binding) (warnings []string, err error) {
	wr := beginWrite(r, nil)
	if err := s.admitChild(wr, binding); err != nil {
		return nil, err
	}
	return wr.warnings, checkBinding(r.res, binding)
}

// checkBinding checks a Binding that was posted to a resource of the core group.
func checkBinding(res *api.Resource, b *corev1.Binding) error {
	errs := pods.ValidateBinding(b)
	errs = res.ValidateReferences(errs, b, nil)
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Binding").GroupKind(), b.Name, apifield.Few(errs))
}
