package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// evict answers a POST of an Eviction: it deletes a pod unless a PodDisruptionBudget
// forbids it now.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func (s *Server) evict(w http.ResponseWriter, r *request) error {
	body, err := s.jsonBody(w, r)
	if err != nil {
		return err
	}
	eviction := &policyv1.Eviction{}
	if err := decodeInto(r, policyv1.SchemeGroupVersion.WithKind("Eviction"), body, eviction); err != nil {
		return err
	}
	if eviction.Name != "" && eviction.Name != r.name {
		return apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	if err := s.admitChild(r, eviction); err != nil {
		return err
	}
	options := eviction.DeleteOptions
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	if len(options.DryRun) > 0 {
		r.query["dryRun"] = options.DryRun
	}
	o, err := r.objects.Get(r.Context(), r.namespace, r.name, storage.At{})
	if err != nil {
		return err
	}
	pod, err := decode(r.res, o)
	if err != nil {
		return err
	}
	if err := s.spendBudget(r.Context(), r, pod.(*corev1.Pod)); err != nil {
		return err
	}
	if len(options.DryRun) == 0 {
		if err := s.markEvicted(r.Context(), r, options); err != nil {
			return err
		}
	}
	if _, _, err := s.deleteObject(r.Context(), r, options); err != nil {
		return err
	}
	return s.writeStatus(w, r, metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
}

// spendBudget takes one disruption from the budget that covers the pod, if there is one.
func (s *Server) spendBudget(ctx context.Context, r *request, pod *corev1.Pod) error {
	if !pod.DeletionTimestamp.IsZero() || pod.Status.Phase == corev1.PodSucceeded ||
		pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodPending {
		return nil // it is no healthy pod that is lost
	}
	res := s.Registry.Snapshot().Kind(policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"))
	if res == nil {
		return nil
	}
	budget := &request{Request: r.Request, verb: "update", res: res, objects: s.collection(res), namespace: r.namespace, query: r.query}
	names, err := covering(ctx, budget, pod)
	if err != nil || len(names) == 0 {
		return err
	}
	if len(names) > 1 {
		return apierrors.NewInternalError(errors.New("this pod has more than one PodDisruptionBudget, which the eviction subresource does not support"))
	}
	budget.name = names[0]
	_, err = s.modify(ctx, budget, func(old api.Object) (api.Object, error) {
		pdb := old.DeepCopyObject().(*policyv1.PodDisruptionBudget)
		if !isReady(pod) && sparesUnready(pdb) {
			return pdb, nil
		}
		return pdb, s.spend(pdb, pod.Name)
	})
	return err
}

// markEvicted gives the pod the condition by which its owner knows why it went (KEP-3329). A
// revision that the deletion asks for is that of the pod before.
func (s *Server) markEvicted(ctx context.Context, r *request, options *metav1.DeleteOptions) error {
	marking := &request{Request: r.Request, verb: "update", res: r.res, objects: r.objects, namespace: r.namespace, name: r.name, query: r.query}
	marked, err := s.modify(ctx, marking, func(old api.Object) (api.Object, error) {
		if err := checkPreconditions(marking, old, options.Preconditions); err != nil {
			return nil, err
		}
		pod := old.DeepCopyObject().(*corev1.Pod)
		now := metav1.NewTime(s.Clock.Now()).Rfc3339Copy()
		condition := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting", LastTransitionTime: now}
		i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == condition.Type })
		if i < 0 {
			pod.Status.Conditions = append(pod.Status.Conditions, condition)
			return pod, nil
		}
		if before := pod.Status.Conditions[i]; before.Status == condition.Status {
			condition.LastTransitionTime = before.LastTransitionTime
		}
		pod.Status.Conditions[i] = condition
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

// covering names the budgets whose selectors match the pod.
func covering(ctx context.Context, r *request, pod *corev1.Pod) ([]string, error) {
	l, err := r.objects.List(ctx, storage.ListRequest{Scope: storage.Scope{Namespace: pod.Namespace}})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, o := range l.Items {
		obj, err := decode(r.res, o)
		if err != nil {
			return nil, err
		}
		selector, err := metav1.LabelSelectorAsSelector(obj.(*policyv1.PodDisruptionBudget).Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			names = append(names, obj.GetName())
		}
	}
	return names, nil
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// sparesUnready reports whether a pod that is not ready may go without spending (KEP-3017).
func sparesUnready(pdb *policyv1.PodDisruptionBudget) bool {
	if p := pdb.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return pdb.Status.CurrentHealthy >= pdb.Status.DesiredHealthy && pdb.Status.DesiredHealthy > 0
}

// spend notes a disruption in the budget's status, until its controller has seen the pod go.
func (s *Server) spend(pdb *policyv1.PodDisruptionBudget, pod string) error {
	refuse := func(format string, args ...any) error {
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: policyv1.DisruptionBudgetCause, Message: fmt.Sprintf(format, args...),
		})
		return err
	}
	switch st := &pdb.Status; {
	case st.ObservedGeneration < pdb.Generation:
		return refuse("The disruption budget %s is still being processed by the server.", pdb.Name)
	case st.DisruptionsAllowed <= 0:
		return refuse("The disruption budget %s needs %d healthy pods and has %d currently", pdb.Name, st.DesiredHealthy, st.CurrentHealthy)
	}
	pdb.Status.DisruptionsAllowed--
	if pdb.Status.DisruptedPods == nil {
		pdb.Status.DisruptedPods = map[string]metav1.Time{}
	}
	pdb.Status.DisruptedPods[pod] = metav1.NewTime(s.Clock.Now()).Rfc3339Copy()
	return nil
}
