package namespace

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// updateConditions writes the conditions of the namespace, if they changed.
func (n *namespaces) updateConditions(ctx context.Context, ns *corev1.Namespace, rest remaining) error {
	updated := ns.DeepCopy()
	changed := false
	for _, c := range conditions(rest) {
		c.LastTransitionTime = metav1.NewTime(n.clock.Now())
		changed = set(&updated.Status.Conditions, c) || changed
	}
	if !changed {
		return nil
	}
	_, err := n.client().CoreV1().Namespaces().UpdateStatus(ctx, updated, metav1.UpdateOptions{})
	return err
}

// conditions returns the five conditions of a namespace that is being deleted. Status True means that something delays
// the deletion.
func conditions(rest remaining) []corev1.NamespaceCondition {
	objects, finalizers := rest.describeObjects(), rest.describeFinalizers()
	return []corev1.NamespaceCondition{
		condition(corev1.NamespaceDeletionDiscoveryFailure, len(rest.discovery) > 0,
			"DiscoveryFailed", join(rest.discovery),
			"ResourcesDiscovered", "All resources successfully discovered"),
		condition(corev1.NamespaceDeletionGVParsingFailure, len(rest.versions) > 0,
			"GroupVersionParsingFailed", join(rest.versions),
			"ParsedGroupVersions", "All legacy kube types successfully parsed"),
		condition(corev1.NamespaceDeletionContentFailure, len(rest.content) > 0,
			"ContentDeletionFailed", fmt.Sprintf("Failed to delete all resource types, %d remaining: %s",
				len(rest.content), join(rest.content)),
			"ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
		condition(corev1.NamespaceContentRemaining, objects != "",
			"SomeResourcesRemain", "Some resources are remaining: "+objects,
			"ContentRemoved", "All content successfully removed"),
		condition(corev1.NamespaceFinalizersRemaining, finalizers != "",
			"SomeFinalizerRemain", "Some finalizers are remaining: "+finalizers,
			"ContentRemoved", "All content successfully removed"),
	}
}

func condition(t corev1.NamespaceConditionType, bad bool, badReason, badMessage, goodReason,
	goodMessage string) corev1.NamespaceCondition {
	if bad {
		return corev1.NamespaceCondition{Type: t, Status: corev1.ConditionTrue, Reason: badReason, Message: badMessage}
	}
	return corev1.NamespaceCondition{Type: t, Status: corev1.ConditionFalse, Reason: goodReason, Message: goodMessage}
}

// set adds or replaces a condition, and reports whether it changed. It keeps the transition time if the status is the
// same.
func set(conditions *[]corev1.NamespaceCondition, c corev1.NamespaceCondition) (changed bool) {
	i := slices.IndexFunc(*conditions, func(o corev1.NamespaceCondition) bool { return o.Type == c.Type })
	if i < 0 {
		*conditions = append(*conditions, c)
		return true
	}
	old := &(*conditions)[i]
	if old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
		return false
	}
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	*old = c
	return true
}

func join(errs []error) string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}

func (r *remaining) describeObjects() string {
	var parts []string
	for _, gvr := range r.sortedResources() {
		parts = append(parts, fmt.Sprintf("%s.%s has %d resource instances", gvr.Resource, gvr.Group, r.objects[gvr]))
	}
	return strings.Join(parts, ", ")
}

func (r *remaining) describeFinalizers() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r.finalizers)) {
		parts = append(parts, fmt.Sprintf("%s in %d resource instances", name, r.finalizers[name]))
	}
	return strings.Join(parts, ", ")
}
