package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	podresources "k8s.io/component-helpers/resource"
)

// limitRangerAnnotation lists the amounts that the plugin has set in a pod.
const limitRangerAnnotation = "kubernetes.io/limit-ranger"

// limitRanger applies the LimitRanges of a namespace.
// https://kubernetes.io/docs/concepts/policy/limit-range/
type limitRanger struct{ cluster Cluster }

func newLimitRanger(env *Env) (Plugin, error) { return &limitRanger{env.Cluster}, nil }

// Mutate fills in the default requests and limits of containers that have none.
func (p *limitRanger) Mutate(ctx context.Context, a *Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || a.Operation != Create {
		return nil
	}
	ranges, err := list[*corev1.LimitRange](ctx, p.cluster, limitRanges, a.Namespace)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		defaultResources(pod, r)
	}
	return nil
}

func defaultResources(pod *corev1.Pod, r *corev1.LimitRange) {
	limits, requests := corev1.ResourceList{}, corev1.ResourceList{}
	for _, item := range r.Spec.Limits {
		if item.Type == corev1.LimitTypeContainer {
			maps.Copy(limits, item.Default)
			maps.Copy(requests, item.DefaultRequest)
		}
	}
	if len(limits) == 0 && len(requests) == 0 {
		return
	}
	var remarks []string
	for i := range pod.Spec.Containers {
		remarks = append(remarks, defaultContainer(&pod.Spec.Containers[i], "container", requests, limits)...)
	}
	for i := range pod.Spec.InitContainers {
		remarks = append(remarks, defaultContainer(&pod.Spec.InitContainers[i], "init container", requests, limits)...)
	}
	if len(remarks) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, limitRangerAnnotation, "LimitRanger plugin set: "+
			strings.Join(remarks, "; "))
	}
}

// defaultContainer sets the missing requests and limits of a container. It returns a description of the requests,
// and one of the limits, that it has set.
func defaultContainer(c *corev1.Container, kind string, requests, limits corev1.ResourceList) []string {
	var remarks []string
	for _, part := range []struct {
		name string
		list *corev1.ResourceList
		from corev1.ResourceList
	}{{"request", &c.Resources.Requests, requests}, {"limit", &c.Resources.Limits, limits}} {
		var set []string
		for name, quantity := range part.from {
			if _, has := (*part.list)[name]; has {
				continue
			}
			if *part.list == nil {
				*part.list = corev1.ResourceList{}
			}
			(*part.list)[name] = quantity.DeepCopy()
			set = append(set, string(name))
		}
		if len(set) > 0 {
			slices.Sort(set)
			remarks = append(remarks, fmt.Sprintf("%s %s for %s %s", strings.Join(set, ", "), part.name, kind, c.Name))
		}
	}
	return remarks
}

// Validate checks the bounds of pods and claims.
func (p *limitRanger) Validate(ctx context.Context, a *Attributes) error {
	if a.Old != nil && a.Old.GetDeletionTimestamp() != nil {
		return nil // a pod that is being deleted must be able to lose its finalizers
	}
	ranges, err := list[*corev1.LimitRange](ctx, p.cluster, limitRanges, a.Namespace)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		var errs []error
		switch obj := a.Object.(type) {
		case *corev1.Pod:
			errs = checkPodLimits(obj, r)
		case *corev1.PersistentVolumeClaim:
			errs = checkClaimLimits(obj, r)
		}
		if len(errs) > 0 {
			return a.Forbid(utilerrors.NewAggregate(errs))
		}
	}
	return nil
}

func checkPodLimits(pod *corev1.Pod, r *corev1.LimitRange) []error {
	var errs []error
	for i := range r.Spec.Limits {
		item := &r.Spec.Limits[i]
		switch item.Type {
		case corev1.LimitTypeContainer:
			for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
				for _, c := range containers {
					errs = append(errs, checkBounds(item, c.Resources.Requests, c.Resources.Limits)...)
				}
			}
		case corev1.LimitTypePod:
			options := podresources.PodResourcesOptions{}
			errs = append(errs, checkBounds(item, podresources.PodRequests(pod, options),
				podresources.PodLimits(pod, options))...)
		}
	}
	return errs
}

func checkClaimLimits(claim *corev1.PersistentVolumeClaim, r *corev1.LimitRange) []error {
	var errs []error
	for i := range r.Spec.Limits {
		item := &r.Spec.Limits[i]
		if item.Type != corev1.LimitTypePersistentVolumeClaim {
			continue
		}
		requests := claim.Spec.Resources.Requests
		for _, name := range sortedNames(item.Min) {
			errs = appendIf(errs, atLeast(item.Type, name, item.Min, requests, nil))
		}
		for _, name := range sortedNames(item.Max) {
			errs = appendIf(errs, requestAtMost(item.Type, name, item.Max, requests))
		}
	}
	return errs
}

func checkBounds(item *corev1.LimitRangeItem, requests, limits corev1.ResourceList) []error {
	var errs []error
	for _, name := range sortedNames(item.Min) {
		errs = appendIf(errs, atLeast(item.Type, name, item.Min, requests, limits))
	}
	for _, name := range sortedNames(item.Max) {
		errs = appendIf(errs, atMost(item.Type, name, item.Max, requests, limits))
	}
	for _, name := range sortedNames(item.MaxLimitRequestRatio) {
		errs = appendIf(errs, ratioAtMost(item.Type, name, item.MaxLimitRequestRatio, requests, limits))
	}
	return errs
}

func atLeast(of corev1.LimitType, name corev1.ResourceName, bounds, requests, limits corev1.ResourceList) error {
	bound, request, limit := bounds[name], requests[name], limits[name]
	_, requested := requests[name]
	_, limited := limits[name]
	switch {
	case !requested:
		return fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, of, bound.String())
	case request.Cmp(bound) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, of, bound.String(),
			request.String())
	case limited && limit.Cmp(bound) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, of, bound.String(), limit.String())
	}
	return nil
}

func atMost(of corev1.LimitType, name corev1.ResourceName, bounds, requests, limits corev1.ResourceList) error {
	bound, request, limit := bounds[name], requests[name], limits[name]
	_, limited := limits[name]
	switch {
	case !limited:
		return fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, of, bound.String())
	case limit.Cmp(bound) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, of, bound.String(), limit.String())
	case request.Cmp(bound) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, of, bound.String(),
			request.String())
	}
	return nil
}

func requestAtMost(of corev1.LimitType, name corev1.ResourceName, bounds, requests corev1.ResourceList) error {
	bound, request := bounds[name], requests[name]
	if _, requested := requests[name]; !requested {
		return fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", name, of, bound.String())
	}
	if request.Cmp(bound) > 0 {
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, of, bound.String(),
			request.String())
	}
	return nil
}

func ratioAtMost(of corev1.LimitType, name corev1.ResourceName, bounds, requests, limits corev1.ResourceList) error {
	bound, request, limit := bounds[name], requests[name], limits[name]
	switch {
	case request.IsZero():
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0",
			name, of, bound.String())
	case limit.IsZero():
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name,
			of, bound.String())
	}
	if ratio := limit.AsApproximateFloat64() / request.AsApproximateFloat64(); ratio > bound.AsApproximateFloat64() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, of,
			bound.String(), ratio)
	}
	return nil
}

func sortedNames(list corev1.ResourceList) []corev1.ResourceName {
	return slices.Sorted(maps.Keys(list))
}

func appendIf(errs []error, err error) []error {
	if err == nil {
		return errs
	}
	return append(errs, err)
}
