package csr

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// New returns a controller whose keys are requests. It calls handle for each request that exists and is not
// being deleted. The request comes from the cache and must not be changed. NotFound from handle is dropped: the
// request was deleted meanwhile.
func New(env *controller.Env, name string,
	handle func(context.Context, *certificatesv1.CertificateSigningRequest) error) *controller.Controller {
	informer := env.Informers.Certificates().V1().CertificateSigningRequests()
	lister := informer.Lister()
	c := controller.New(env, name, func(ctx context.Context, key string) error {
		r, err := lister.Get(key)
		if err == nil && r.DeletionTimestamp == nil {
			err = handle(ctx, r)
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	controller.Watch(c, informer.Informer(), controller.Handler[*certificatesv1.CertificateSigningRequest]{
		Add:    func(r *certificatesv1.CertificateSigningRequest) { c.EnqueueObject(r) },
		Update: func(_, r *certificatesv1.CertificateSigningRequest) { c.EnqueueObject(r) },
	})
	return c
}
