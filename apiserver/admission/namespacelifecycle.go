package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// immortal are the namespaces that cannot be deleted.
var immortal = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

// namespaceLifecycle rejects new objects in terminating namespaces, and the deletion of namespaces that the cluster
// needs.
type namespaceLifecycle struct{ cluster Cluster }

func newNamespaceLifecycle(env *Env) (Plugin, error) { return &namespaceLifecycle{env.Cluster}, nil }

// Mutate checks the namespace and does not change the object. As a mutator it runs before the other plugins, which
// therefore need not check that the namespace exists.
func (p *namespaceLifecycle) Mutate(ctx context.Context, a *Attributes) error {
	if a.Operation != Create || a.Namespace == "" {
		return nil
	}
	ns, err := get[*corev1.Namespace](ctx, p.cluster, namespaces, "", a.Namespace)
	if err != nil {
		return notFound(err, namespaces, a.Namespace)
	}
	if ns.Status.Phase != corev1.NamespaceTerminating {
		return nil
	}
	refusal := a.Forbid(fmt.Errorf("unable to create new content in namespace %s because it is being terminated",
		a.Namespace)).(*apierrors.StatusError)
	refusal.ErrStatus.Details.Causes = append(refusal.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
		Field:   "metadata.namespace",
	})
	return refusal
}

// Validate rejects the deletion of immortal namespaces.
func (p *namespaceLifecycle) Validate(_ context.Context, a *Attributes) error {
	if a.Operation == Delete && slices.Contains(immortal, a.Name) {
		return a.Forbid(errors.New("this namespace may not be deleted"))
	}
	return nil
}
