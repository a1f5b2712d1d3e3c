package apiserver

import (
	"context"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/pods"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
	"github.com/coxswain-dev/coxswain/storage"
)

// evict answers a POST of an Eviction: it deletes a pod unless a PodDisruptionBudget forbids it.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func (s *Server) evict(w http.ResponseWriter, r *request) error {
	body, strict, err := s.jsonBody(w, r)
	if err != nil {
		return err
	}
	eviction := &policyv1.Eviction{}
	kind := policyv1.SchemeGroupVersion.WithKind("Eviction")
	if _, err := decodeInto(r, kind, body, strict, eviction); err != nil {
		return err
	}
	if eviction.Name != "" && eviction.Name != r.name {
		return apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	admitted := beginWrite(r, nil)
	if err := s.admitChild(admitted, eviction); err != nil {
		return err
	}
	options := eviction.DeleteOptions
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	if len(options.DryRun) > 0 {
		r.exchange().labels.DryRun = "All"
	}
	wr := newDelete(r, options)
	wr.decoding, wr.warnings = admitted.warnings, admitted.warnings
	o, err := r.objects.Get(r.Context(), r.namespace, r.name, storage.At{})
	if err != nil {
		return err
	}
	pod, err := encoding.Decode(r.Context(), r.res, o)
	if err != nil {
		return err
	}
	if err := s.spendBudget(r.Context(), wr, pod.(*corev1.Pod)); err != nil {
		return err
	}
	if len(options.DryRun) == 0 {
		if err := s.markEvicted(r.Context(), wr, options); err != nil {
			return err
		}
	}
	if _, _, err := s.deleteObject(r.Context(), wr, options); err != nil {
		return err
	}
	responsewriter.AddWarnings(w.Header(), wr.warnings)
	return s.writeStatus(w, r.Request, metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
}

// spendBudget takes one disruption from the budget that covers the pod, if there is one.
func (s *Server) spendBudget(ctx context.Context, wr *write, pod *corev1.Pod) error {
	if !pods.IsDisruption(pod) {
		return nil
	}
	res := s.Registry.Snapshot().Kind(policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"))
	if res == nil {
		return nil
	}
	budgets, err := s.budgets(ctx, res, pod.Namespace)
	if err != nil {
		return err
	}
	name, err := pods.BudgetOf(pod, budgets)
	if err != nil || name == "" {
		return err
	}
	budget := newWrite(wr.update(res, s.collection(res), name), nil)
	budget.dryRun = wr.dryRun
	_, err = s.modify(ctx, budget, func(old api.Object) (api.Object, error) {
		pdb := old.DeepCopyObject().(*policyv1.PodDisruptionBudget)
		return pdb, pods.Spend(pdb, pod, s.Clock.Now())
	})
	return err
}

// markEvicted sets the condition of an eviction on the pod. If the deletion has the precondition of a resourceVersion,
// the pod must have it before, and the precondition becomes the new one.
func (s *Server) markEvicted(ctx context.Context, wr *write, options *metav1.DeleteOptions) error {
	marking := newWrite(wr.update(wr.res, wr.objects, wr.name), nil)
	marking.dryRun = wr.dryRun
	marked, err := s.modify(ctx, marking, func(old api.Object) (api.Object, error) {
		if err := strategy.CheckPreconditions(marking.res, old, options.Preconditions); err != nil {
			return nil, err
		}
		pod := old.DeepCopyObject().(*corev1.Pod)
		pods.MarkEvicted(pod, s.Clock.Now())
		return pod, nil
	})
	if err != nil {
		return err
	}
	if p := options.Preconditions; p != nil && p.ResourceVersion != nil {
		version := strconv.FormatInt(marked.Revision, 10)
		p.ResourceVersion = &version
	}
	return nil
}

// budgets returns the disruption budgets of a namespace.
func (s *Server) budgets(ctx context.Context, res *api.Resource, namespace string) (
	[]*policyv1.PodDisruptionBudget, error) {
	l, err := s.collection(res).List(ctx, storage.ListRequest{Scope: storage.Scope{Namespace: namespace}})
	if err != nil {
		return nil, err
	}
	budgets := make([]*policyv1.PodDisruptionBudget, len(l.Items))
	for i, o := range l.Items {
		obj, err := encoding.Decode(ctx, res, o)
		if err != nil {
			return nil, err
		}
		budgets[i] = obj.(*policyv1.PodDisruptionBudget)
	}
	return budgets, nil
}
