package endpointslices

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Finalize creates, updates and deletes the slices. triggerTime, if it is not zero, is the time of the change that they
// answer to, and is written to their annotation. stored is called with each slice as it was stored.
func (c *Changes) Finalize(ctx context.Context, client kubernetes.Interface, triggerTime time.Time,
	stored func(*discoveryv1.EndpointSlice)) error {
	for _, s := range append(c.Create, c.Update...) {
		annotate(s, triggerTime)
	}
	slices := client.DiscoveryV1().EndpointSlices(c.Namespace)
	var errs []error
	note := func(s *discoveryv1.EndpointSlice, err error, doing string, count *int) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", doing, err))
			return
		}
		*count++
		stored(s)
	}
	for _, s := range c.Create {
		created, err := slices.Create(ctx, s, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		note(created, err, "create a slice", &c.written.created)
	}
	for _, s := range c.Update {
		updated, err := slices.Update(ctx, s, metav1.UpdateOptions{})
		note(updated, err, "update slice "+s.Name, &c.written.updated)
	}
	deleted, err := Delete(ctx, client, c.Delete)
	c.written.deleted += deleted
	return errors.Join(append(errs, err)...)
}

// Delete deletes slices, and returns the number of slices that no longer exist. Some may have been gone before.
func Delete(ctx context.Context, client kubernetes.Interface, slices []*discoveryv1.EndpointSlice) (int, error) {
	var errs []error
	for _, s := range slices {
		err := client.DiscoveryV1().EndpointSlices(s.Namespace).Delete(ctx, s.Name,
			*metav1.NewPreconditionDeleteOptions(string(s.UID)))
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete slice %s: %w", s.Name, err))
		}
	}
	return len(slices) - len(errs), errors.Join(errs...)
}

func annotate(s *discoveryv1.EndpointSlice, triggerTime time.Time) {
	if triggerTime.IsZero() {
		delete(s.Annotations, corev1.EndpointsLastChangeTriggerTime)
		return
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[corev1.EndpointsLastChangeTriggerTime] = triggerTime.UTC().Format(time.RFC3339Nano)
}
