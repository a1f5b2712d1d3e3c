// Package podcertificatecleaner deletes PodCertificateRequests 15 minutes after their creation. By then the kubelet has
// its certificate, or creates a new request. (KEP-4317)
package podcertificatecleaner

import (
	"context"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// retention is how long a request is kept, whether it succeeded or not.
const retention = 15 * time.Minute

// New returns the controller. Its keys are PodCertificateRequests.
func New(env *controller.Env) (*controller.Controller, error) {
	informer := env.Informers.Certificates().V1().PodCertificateRequests()
	lister := informer.Lister()
	var c *controller.Controller
	c = controller.New(env, "podcertificaterequest-cleaner-controller", func(ctx context.Context, key string) error {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		if err != nil {
			return err
		}
		r, err := lister.PodCertificateRequests(namespace).Get(name)
		if err == nil && r.DeletionTimestamp == nil {
			if end := r.CreationTimestamp.Add(retention); end.After(env.Clock.Now()) {
				c.EnqueueAt(key, end)
				return nil
			}
			err = env.Client().CertificatesV1().PodCertificateRequests(namespace).Delete(ctx, name,
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}})
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	controller.Watch(c, informer.Informer(), controller.Handler[*certificatesv1.PodCertificateRequest]{
		Add: func(r *certificatesv1.PodCertificateRequest) { c.EnqueueObject(r) },
	})
	return c, nil
}
