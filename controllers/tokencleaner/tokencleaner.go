// Package tokencleaner deletes expired bootstrap tokens, which are Secrets in kube-system.
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
package tokencleaner

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/bootstraptoken"
	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// New returns the controller. Its keys are the names of Secrets.
func New(env *controller.Env) (*controller.Controller, error) {
	factory, secrets := bootstraptoken.Informer(env.Reader)
	lister := secrets.Lister().Secrets(metav1.NamespaceSystem)
	var c *controller.Controller
	c = controller.New(env, "token-cleaner", func(ctx context.Context, name string) error {
		secret, err := lister.Get(name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil || secret.DeletionTimestamp != nil {
			return err
		}
		end, expires := bootstraptoken.Expiration(secret)
		if !expires {
			return nil
		}
		if end.After(env.Clock.Now()) {
			c.EnqueueAt(name, end)
			return nil
		}
		err = env.Client().CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion},
		})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err // a conflict means that a client may have extended the expiration
	})
	controller.Watch(c, secrets.Informer(), controller.Handler[*corev1.Secret]{
		Add:    func(s *corev1.Secret) { c.Enqueue(s.Name) },
		Update: func(_, s *corev1.Secret) { c.Enqueue(s.Name) },
	})
	c.AddInformers(factory)
	return c, nil
}
