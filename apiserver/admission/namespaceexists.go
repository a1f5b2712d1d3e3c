package admission

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// namespaceExists rejects every write in a namespace that does not exist.
type namespaceExists struct{ cluster Cluster }

func newNamespaceExists(env *Env) (Plugin, error) { return &namespaceExists{env.Cluster}, nil }

func (p *namespaceExists) Validate(ctx context.Context, a *Attributes) error {
	if a.Namespace == "" {
		return nil
	}
	_, err := p.cluster.Get(ctx, namespaces, "", a.Namespace)
	return notFound(err, namespaces, a.Namespace)
}

// namespaceAutoProvision creates the namespace of a new object.
type namespaceAutoProvision struct{ cluster Cluster }

func newNamespaceAutoProvision(env *Env) (Plugin, error) {
	return &namespaceAutoProvision{env.Cluster}, nil
}

func (p *namespaceAutoProvision) Mutate(ctx context.Context, a *Attributes) error {
	if a.Namespace == "" || a.DryRun {
		return nil
	}
	_, err := p.cluster.Get(ctx, namespaces, "", a.Namespace)
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	return p.cluster.CreateNamespace(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.Namespace}})
}
